#include "train/run_saver.h"

#include <ATen/core/grad_mode.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "train/room_for_copies.h"
#include "train/unsafe_to_save.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/memory/shortage.h"
#include "vlmtrain/memory/single_thread.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

namespace {

/// Adds the time that it lives to `seconds`.
class WaitingTime {
 public:
  explicit WaitingTime(double& seconds) : seconds_(seconds) {}
  ~WaitingTime() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  WaitingTime(const WaitingTime&) = delete;
  WaitingTime& operator=(const WaitingTime&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

RunSaver::RunSaver(const Config& config, RunSetup& run, const RunRanks& ranks, OnCheckpoint on_checkpoint)
    : RunSaver(config, run, ranks, std::move(on_checkpoint), [&config, &run, &ranks] {
        return room_for_copies(run.host.get(), config.memory.mode, ranks.on_this_machine());
      }) {}

RunSaver::RunSaver(const Config& config, RunSetup& run, const RunRanks& ranks, OnCheckpoint on_checkpoint, Room room)
    : config_(config),
      run_(run),
      ranks_(ranks),
      on_checkpoint_(std::move(on_checkpoint)),
      room_(std::move(room)),
      saved_step_(run_.resumed ? run_.state.step : -1) {}

RunSaver::~RunSaver() = default;

void RunSaver::save(bool goes_on) {
  if (!is_rehearsal() && shares_state()) {
    save_together();
  } else if (!is_rehearsal() && ranks_.writes()) {
    finish();
    if (!goes_on || !save_meanwhile()) save_now();
  }
  saved_step_ = run_.state.step;
}

void RunSaver::save_now() {
  const auto gate = ranks_.while_writing();
  is_saving_ = true;
  const Written written = [this] {
    const WaitingTime waiting(seconds_);
    return write(content(ChangingValues::kInPlace), ledger_text());
  }();
  is_saving_ = false;
  saved_step_ = run_.state.step;
  on_checkpoint_(written.step, written.folder);
}

bool RunSaver::shares_state() const {
  return !run_.training->optimizer.shard().is_all();
}

void RunSaver::save_together() {
  run_.training->weights->finish();
  is_saving_ = true;
  const auto folder = [this] {
    const WaitingTime waiting(seconds_);
    if (config_.output.async_save == AsyncSave::kTrue) {
      say_why_not("ranks that share the optimizer's state write it together");
    }
    const auto all = content(ChangingValues::kInPlace);
    const engine::Shard& shard = run_.training->optimizer.shard();
    return run_.checkpoints.write_parts(all,
                                        {.shard = shard,
                                         .is_copy = ranks_.rank() >= shard.count,
                                         .is_first = ranks_.writes(),
                                         .follow = [this] { run_.model->parameters().follow(); }},
                                        ranks_.consensus());
  }();
  is_saving_ = false;
  if (!ranks_.writes()) return;
  write_ledger();
  on_checkpoint_(run_.state.step, folder);
}

bool RunSaver::save_meanwhile() {
  const WaitingTime waiting(seconds_);
  if (!has_room_for_copies()) return false;
  is_saving_ = true;
  try {
    writing_ = std::async(std::launch::async, [this, copies = copied_content(), gate = ranks_.while_writing(),
                                               ledger = ledger_text()]() mutable {
      // To be gone, whatever happens, before anybody asks what came of it.
      const WritingGate::Pass held = std::move(gate);
      const CheckpointContent content = std::move(copies);
      memory::keep_aten_on_this_thread();
      const at::NoGradGuard no_gradients;
      return write(content, ledger);
    });
  } catch (const std::system_error& error) {
    say_why_not(fmt::format("no thread can be started for it ({})", error.code().message()));
    return false;
  } catch (const std::exception& error) {
    const auto shortage = memory::shortage_in(error);
    if (!shortage) throw;
    say_why_not(fmt::format("there is no memory for copies ({})", shortage->reason));
    return false;
  }
  if (run_.host) run_.host->note_copies(bytes_in_background());
  return true;
}

int64_t RunSaver::bytes_in_background() const {
  return bytes_of_copies(run_.training->optimizer) + bytes_of_writing(*run_.model);
}

bool RunSaver::has_room_for_copies() {
  if (config_.output.async_save != AsyncSave::kAuto) return config_.output.async_save == AsyncSave::kTrue;
  const int64_t bytes = bytes_in_background();
  const memory::HostRoom room = room_();
  if (bytes <= room.bytes) return true;
  say_why_not(fmt::format("copies take {} of the host's memory, and {} are left for them by {}", format_bytes(bytes),
                          format_bytes(room.bytes), room.bound));
  return false;
}

void RunSaver::say_why_not(const std::string& reason) {
  if (std::exchange(has_said_why_not_, true)) return;
  spdlog::info("checkpoint of step {}: steps wait until it is written, for {}", run_.state.step, reason);
}

CheckpointContent RunSaver::content(ChangingValues values) const {
  run_.state.task_balance = run_.tasks->state();
  return content_of(run_.state, *run_.model, run_.training->optimizer, run_.ledger, *run_.base,
                    saved_dtype(config_.output), values);
}

CheckpointContent RunSaver::copied_content() const {
  if (!run_.host) return content(ChangingValues::kCopied);
  const auto uncounted = run_.host->beside_steps();
  return content(ChangingValues::kCopied);
}

std::string RunSaver::ledger_text() const {
  return io::json_text(run_.ledger_json(), 2) + "\n";
}

RunSaver::Written RunSaver::write(const CheckpointContent& content, const std::string& ledger) const {
  Written written{.step = content.step, .folder = run_.checkpoints.write(content)};
  io::write_file(run_.folder / "ledger.json", ledger);
  return written;
}

void RunSaver::look() {
  // By this clock, and not wait_for(), whose symbol older hosts lack (cmake/portable).
  constexpr std::chrono::system_clock::time_point kLongAgo;
  if (writing_.valid() && writing_.wait_until(kLongAgo) == std::future_status::ready) finish();
}

void RunSaver::finish() {
  if (!writing_.valid()) return;
  const Written written = [this] {
    const WaitingTime waiting(seconds_);
    return writing_.get();
  }();
  is_saving_ = false;
  on_checkpoint_(written.step, written.folder);
}

void RunSaver::write_ledger() const {
  if (!ranks_.writes()) return;
  io::write_file(run_.folder / "ledger.json", ledger_text());
}

void RunSaver::finish_before_the_end() {
  if (!writing_.valid()) return;
  try {
    finish();
  } catch (const std::exception& another) {
    spdlog::warn("while step {} was saved: {}", saved_step_, another.what());
  }
}

void RunSaver::save_before_the_end(const std::exception& error, const std::function<bool()>& numbers_are_lost) {
  finish_before_the_end();
  if (is_rehearsal() || !ranks_.writes() || run_.state.step == 0 || (is_saved() && !is_saving_)) return;
  if (shares_state()) {
    spdlog::warn("the steps since the last checkpoint are not saved: each rank has a part of what would be");
    return;
  }
  if (!ranks_.are_sums_done()) {
    spdlog::warn("the steps since the last checkpoint are not saved: what the ranks added up last is not whole");
    return;
  }
  const std::string reason = unsafe_to_save(error, {.is_saving = is_saving_,
                                                    .weights_are_whole = run_.training->optimizer.is_whole(),
                                                    .numbers_are_lost = !is_saving_ && numbers_are_lost()});
  if (!reason.empty()) {
    spdlog::warn("the steps since the last checkpoint are not saved: {}", reason);
    return;
  }
  try {
    save_now();
  } catch (const std::exception& another) {
    spdlog::warn("while step {} was saved: {}", run_.state.step, another.what());
  }
  if (is_saved()) {
    spdlog::warn("what was done up to step {} is saved ({}); the same command goes on from there", run_.state.step,
                 run_.checkpoints.newest()->string());
  } else {
    spdlog::warn("the steps since the last checkpoint could not be saved");
  }
}

}  // namespace vlmtrain::train
