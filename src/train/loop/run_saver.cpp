#include "train/loop/run_saver.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <system_error>
#include <utility>

#include "train/run/callbacks.h"
#include "train/run/run_folder.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/cpu_info.h"
#include "vlmtrain/memory/out_of_memory.h"
#include "vlmtrain/planner/target.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

memory::AvailableHostMemory compute_async_save_budget(const AsyncSaveBudgetInputs& inputs, double margin_percent) {
  const auto margin_bytes = std::llround(static_cast<double>(inputs.available.bytes) * margin_percent / 100);
  // Memory that the planned steps of all ranks will still allocate.
  const int64_t planned_growth_bytes = inputs.ranks * std::max<int64_t>(0, inputs.planned_bytes - inputs.process_bytes);
  const int64_t free_bytes = inputs.available.bytes - inputs.process_bytes - margin_bytes - planned_growth_bytes;
  memory::AvailableHostMemory budget;
  budget.bytes = std::max<int64_t>(0, std::min(free_bytes, inputs.unused_limit_bytes));
  budget.limit_source =
      free_bytes <= inputs.unused_limit_bytes ? inputs.available.limit_source : "the run's limit (plan.json)";
  return budget;
}

memory::AvailableHostMemory compute_async_save_budget(const HostRunPlan* host_plan, planner::MemoryMode mode,
                                                      int64_t ranks) {
  AsyncSaveBudgetInputs inputs;
  inputs.available = memory::get_available_host_memory();
  inputs.process_bytes = memory::get_resident_bytes();
  inputs.ranks = ranks;
  inputs.unused_limit_bytes = std::numeric_limits<int64_t>::max();
  if (host_plan != nullptr) {
    inputs.planned_bytes = host_plan->planned_bytes();
    inputs.unused_limit_bytes = host_plan->compute_unused_limit_bytes();
  }
  return compute_async_save_budget(inputs, planner::get_margin_percent(mode));
}

std::string find_unsafe_save_reason(const std::exception& error, const RunErrorState& state) {
  if (state.is_saving) return "the error occurred while a checkpoint was written";
  if (dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr) {
    return "the device failed, and its memory may be corrupted";
  }
  if (!state.are_weights_consistent) return "the error occurred while the weights were updated";
  if (state.are_metrics_lost) return "the result of the last step is unknown";
  return {};
}

RunSaver::RunSaver(const Config& config, RunSetup& run, const RankGroup& ranks, CheckpointHandler on_checkpoint)
    : RunSaver(config, run, ranks, std::move(on_checkpoint), [&config, &run, &ranks] {
        return compute_async_save_budget(run.host_plan.get(), config.memory.mode, ranks.local_world_size());
      }) {}

RunSaver::RunSaver(const Config& config, RunSetup& run, const RankGroup& ranks, CheckpointHandler on_checkpoint,
                   MemoryBudgetFunction budget)
    : config_(config),
      run_(run),
      ranks_(ranks),
      on_checkpoint_(std::move(on_checkpoint)),
      get_memory_budget_(std::move(budget)),
      saved_step_(run_.is_resumed ? run_.state.step : -1) {}

RunSaver::~RunSaver() = default;

void RunSaver::save(bool continues) {
  if (!is_dry_run() && is_state_sharded()) {
    save_sharded();
  } else if (!is_dry_run() && ranks_.is_main_process()) {
    finish();
    if (!continues || !save_async()) save_synchronously();
  }
  saved_step_ = run_.state.step;
}

void RunSaver::save_synchronously() {
  const auto lock = ranks_.lock_checkpoint();
  is_saving_ = true;
  const SavedCheckpoint saved = [this] {
    const ScopedStopwatch timer(save_seconds_);
    return write(make_content(ParameterValueStorage::kInPlace), format_ledger());
  }();
  is_saving_ = false;
  saved_step_ = run_.state.step;
  on_checkpoint_(saved.step, saved.folder);
}

bool RunSaver::is_state_sharded() const {
  return !run_.training->optimizer.shard().covers_all();
}

void RunSaver::save_sharded() {
  run_.training->optimizer_sync->wait_for_weights();
  is_saving_ = true;
  const auto folder = [this] {
    const ScopedStopwatch timer(save_seconds_);
    if (config_.output.async_save == AsyncSaveMode::kAlways) {
      log_synchronous_save_reason("the ranks write the sharded optimizer state together");
    }
    const auto content = make_content(ParameterValueStorage::kInPlace);
    const engine::Shard& shard = run_.training->optimizer.shard();
    return run_.checkpoints.write_sharded(
        content,
        {.shard = shard,
         .is_replica = ranks_.rank() >= shard.count,
         .writes_shared_files = ranks_.is_main_process(),
         .join_remaining_passes = [this] { run_.model->parameters().join_remaining_passes(); }},
        ranks_.consensus());
  }();
  is_saving_ = false;
  if (!ranks_.is_main_process()) return;
  write_ledger();
  on_checkpoint_(run_.state.step, folder);
}

bool RunSaver::save_async() {
  const ScopedStopwatch timer(save_seconds_);
  if (!can_save_async()) return false;
  is_saving_ = true;
  try {
    pending_write_ = std::async(
        std::launch::async,
        [this, copies = make_copied_content(), lock = ranks_.lock_checkpoint(), ledger = format_ledger()]() mutable {
          // The lock and the copies are released, even after an exception, before the future is
          // ready.
          const CheckpointLock::Guard held_lock = std::move(lock);
          const CheckpointContent content = std::move(copies);
          memory::use_single_aten_thread();
          const at::NoGradGuard no_gradients;
          return write(content, ledger);
        });
  } catch (const std::system_error& error) {
    log_synchronous_save_reason(fmt::format("cannot start a thread ({})", error.code().message()));
    return false;
  } catch (const std::exception& error) {
    const auto out_of_memory = memory::detect_out_of_memory(error);
    if (!out_of_memory) throw;
    log_synchronous_save_reason(fmt::format("out of memory for copies ({})", out_of_memory->reason));
    return false;
  }
  if (run_.host_plan) run_.host_plan->record_checkpoint_copy_bytes(compute_async_save_bytes());
  return true;
}

int64_t RunSaver::compute_async_save_bytes() const {
  return compute_host_copy_bytes(run_.training->optimizer) + compute_write_buffer_bytes(*run_.model);
}

bool RunSaver::can_save_async() {
  if (config_.output.async_save != AsyncSaveMode::kAuto) return config_.output.async_save == AsyncSaveMode::kAlways;
  const int64_t required_bytes = compute_async_save_bytes();
  const memory::AvailableHostMemory budget = get_memory_budget_();
  if (required_bytes <= budget.bytes) return true;
  log_synchronous_save_reason(fmt::format("copies need {} of host memory, and {} are available within {}",
                                          format_bytes(required_bytes), format_bytes(budget.bytes),
                                          budget.limit_source));
  return false;
}

void RunSaver::log_synchronous_save_reason(const std::string& reason) {
  if (std::exchange(has_logged_sync_reason_, true)) return;
  spdlog::info("checkpoint of step {}: training waits until it is written: {}", run_.state.step, reason);
}

CheckpointContent RunSaver::make_content(ParameterValueStorage values) const {
  run_.state.task_balance_state = run_.task_balancer->state();
  return make_checkpoint_content(run_.state, *run_.model, run_.training->optimizer, run_.ledger, *run_.base,
                                 get_save_dtype(config_.output), values);
}

CheckpointContent RunSaver::make_copied_content() const {
  if (!run_.host_plan) return make_content(ParameterValueStorage::kCopied);
  const auto accounting_pause = run_.host_plan->pause_budget_accounting();
  return make_content(ParameterValueStorage::kCopied);
}

std::string RunSaver::format_ledger() const {
  return io::to_json_string(run_.make_ledger_json(), 2) + "\n";
}

RunSaver::SavedCheckpoint RunSaver::write(const CheckpointContent& content, const std::string& ledger) const {
  SavedCheckpoint saved{.step = content.step, .folder = run_.checkpoints.write(content)};
  io::write_file(run_.folder / "ledger.json", ledger);
  return saved;
}

void RunSaver::poll() {
  // wait_until() of a time in the past, since older hosts lack a symbol that wait_for() needs
  // (cmake/portable).
  constexpr std::chrono::system_clock::time_point kPastTimePoint;
  if (pending_write_.valid() && pending_write_.wait_until(kPastTimePoint) == std::future_status::ready) finish();
}

void RunSaver::wait_until_state_may_change() {
  if (!pending_write_.valid() || run_.training->optimizer.host_bytes() == 0) return;
  const ScopedStopwatch timer(save_seconds_);
  pending_write_.wait();
}

void RunSaver::finish() {
  if (!pending_write_.valid()) return;
  const SavedCheckpoint saved = [this] {
    const ScopedStopwatch timer(save_seconds_);
    return pending_write_.get();
  }();
  is_saving_ = false;
  on_checkpoint_(saved.step, saved.folder);
}

void RunSaver::write_ledger() const {
  if (!ranks_.is_main_process()) return;
  io::write_file(run_.folder / "ledger.json", format_ledger());
}

void RunSaver::finish_write_after_error() {
  if (!pending_write_.valid()) return;
  try {
    finish();
  } catch (const std::exception& second_error) {
    spdlog::warn("saving step {} failed: {}", saved_step_, second_error.what());
  }
}

void RunSaver::emergency_save(const std::exception& error, const std::function<bool()>& are_metrics_lost) {
  finish_write_after_error();
  if (is_dry_run() || !ranks_.is_main_process() || run_.state.step == 0 || (is_current_step_saved() && !is_saving_))
    return;
  if (is_state_sharded()) {
    spdlog::warn("the steps since the last checkpoint are not saved: the optimizer state is sharded across ranks");
    return;
  }
  if (!ranks_.are_reductions_complete()) {
    spdlog::warn("the steps since the last checkpoint are not saved: the last reduction across ranks is incomplete");
    return;
  }
  const std::string reason =
      find_unsafe_save_reason(error, {.is_saving = is_saving_,
                                      .are_weights_consistent = run_.training->optimizer.are_states_consistent(),
                                      .are_metrics_lost = !is_saving_ && are_metrics_lost()});
  if (!reason.empty()) {
    spdlog::warn("the steps since the last checkpoint are not saved: {}", reason);
    return;
  }
  try {
    save_synchronously();
  } catch (const std::exception& second_error) {
    spdlog::warn("saving step {} failed: {}", run_.state.step, second_error.what());
  }
  if (is_current_step_saved()) {
    spdlog::warn("step {} is saved ({}); the same command resumes from it", run_.state.step,
                 run_.checkpoints.find_newest()->string());
  } else {
    spdlog::warn("the steps since the last checkpoint could not be saved");
  }
}

}  // namespace vlmtrain::train
