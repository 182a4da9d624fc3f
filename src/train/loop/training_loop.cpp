#include "train/loop/training_loop.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "train/balance.h"
#include "train/run/callbacks.h"
#include "train/run/run_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/report/json_lines.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

namespace {

using Clock = std::chrono::steady_clock;

int64_t count_batch_tokens(const std::vector<data::Sample>& samples) {
  int64_t tokens = 0;
  for (const auto& sample : samples) tokens += sample.tokens();
  return tokens;
}

double compute_elapsed_seconds(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Returns the message of an error without the stack trace that LibTorch's errors have after the
/// first line.
std::string get_message_without_trace(const std::exception& error) {
  return dynamic_cast<const c10::Error*>(&error) == nullptr ? error.what() : get_first_line(error.what());
}

}  // namespace

template <class Action>
void TrainingLoop::apply_to_sample_predictions(const Action& action) {
  if (sample_predictions_) action(*sample_predictions_);
  run_.model->parameters().join_remaining_passes();
}

TrainingLoop::TrainingLoop(const Config& config, at::Device device, const RankGroup& ranks, bool quiet)
    : config_(config),
      device_(device),
      ranks_(ranks),
      run_(config, device, ranks),
      epoch_progress_(run_.ledger, *run_.order) {
  ranks.check_same_start(run_.state.step);
  if (const auto& shard = run_.training->optimizer.shard(); !shard.covers_all() && shard.count < ranks.world_size()) {
    ranks.set_shard_group_size(shard.count);
  }
  ranks.connect(device);
  if (!ranks.is_single_process()) run_.training->set_consensus(consensus_);
  check_samples_reach_trained_parts(config, run_.model->parameters(), run_.has_media);
  notice_logger_.mark_logged(run_.ledger.notices());
  if (ranks.is_main_process()) add_callbacks(quiet);
  add_periodic_evaluation();
  log_run_start();
  if (run_.is_resumed) {
    report_event(report::EventKind::kResumed, fmt::format("resuming after step {} from {}", run_.state.step,
                                                          run_.checkpoints.find_newest()->string()));
  }
  if (!run_.changes.empty()) report_event(report::EventKind::kSettingsChanged, run_.describe_setting_changes(config));
}

TrainingSummary TrainingLoop::train() {
  try {
    run_steps();
  } catch (const std::exception& error) {
    stop_prefetching();
    finish_after_error(error);
    throw;
  }
  stop_prefetching();
  saver_.write_ledger();
  const bool is_stopped = is_stop_requested();
  if (run_.plan) {
    run_.plan->report_measurements(device_peak_tracker_.peak_memory(), device_peak_tracker_.compute_max_used_bytes(),
                                   run_.state.step, look_ahead_summary_ ? &*look_ahead_summary_ : nullptr);
    // After a stop request, the dry runs of the measurements would delay the exit.
    if (!is_stopped && ranks_.is_main_process())
      run_.plan->record_measurements(device_peak_tracker_.max_context_bytes(), device_peak_tracker_.peak_memory(),
                                     step_time_recorder_);
  }
  if (run_.host_plan) run_.host_plan->report_measurements(run_.state.step);
  if (const auto text = ranks_.describe_collective_traffic(run_.state.step + 1 - first_step_); !text.empty()) {
    spdlog::info("{}{}", text, ranks_.describe_slowest_rank());
  }
  apply_to_sample_predictions([](SamplePredictions& predictions) { predictions.finish(); });
  callbacks_.on_end(/*succeeded=*/true);
  TrainingSummary summary{
      .was_stopped_by_signal = is_stopped && (!should_end_training() || run_.state.evaluation.is_due),
      .steps = run_.state.step,
      .last_loss = last_loss_,
      .newest_checkpoint = run_.checkpoints.find_newest(),
      .reserved_peak_bytes = device_peak_tracker_.peak_memory().reserved_peak_bytes,
      .planned_peak_bytes = run_.plan ? std::optional{run_.plan->peaks().reserved_bytes} : std::nullopt,
      .num_skipped_steps = run_.state.num_skipped_steps,
      .callback_seconds =
          callbacks_.callback_seconds() + (sample_predictions_ ? sample_predictions_->prediction_seconds() : 0),
      .save_seconds = saver_.save_seconds()};
  if (periodic_evaluation_) add_evaluation_summary(summary);
  return summary;
}

void TrainingLoop::add_evaluation_summary(TrainingSummary& summary) const {
  summary.was_stopped_early = periodic_evaluation_->should_stop_early();
  summary.best_metric = to_string(config_.evaluation.best_metric);
  summary.best_step = run_.state.evaluation.best_step;
  summary.best_metric_value = run_.state.evaluation.best_metric_value;
  if (config_.output.keep_best) summary.best_checkpoint = find_best_checkpoint(run_.folder);
  summary.last_evaluation = periodic_evaluation_->last_metrics();
}

void TrainingLoop::add_periodic_evaluation() {
  if (!run_.evaluation_set) {
    // The best result is kept, because evaluations may be enabled again.
    run_.state.evaluation.is_due = false;
    return;
  }
  if (config_.output.keep_best) reset_missing_best_evaluation(run_.folder, run_.state.evaluation);
  auto settings = make_evaluation_settings(config_, run_);
  settings.should_stop = [] { return get_stop_signal() != 0; };
  settings.on_event = [this](report::EventKind kind, const std::string& message, std::vector<std::string> ids) {
    report_event(kind, fmt::format("step {}: {}", run_.state.step, message), std::move(ids));
  };
  periodic_evaluation_.emplace(config_, *run_.evaluation_set, *run_.model, *run_.processor, std::move(settings),
                               /*computes_values=*/!is_dry_run(), run_.state.evaluation);
  if (ranks_.is_main_process()) run_.checkpoints.link_best_checkpoint(run_.state.evaluation.best_step);
}

void TrainingLoop::add_callbacks(bool quiet) {
  add_run_callbacks(callbacks_, config_,
                    {.folder = run_.folder, .step = run_.state.step, .total_steps = run_.total_steps}, quiet);
  if (config_.output.num_sample_predictions > 0 && !is_dry_run()) {
    const bool has_eval_data = !config_.data.eval.empty();
    const auto records = has_eval_data ? open_evaluation_records(config_) : run_.records;
    sample_predictions_.emplace(*records, config_.output.num_sample_predictions, *run_.model, *run_.processor,
                                config_.output.max_prediction_time_share, run_.folder, callbacks_);
  }
  if (!run_.is_resumed) return;
  report::read_json_lines(run_.folder / "metrics.jsonl", [this](const nlohmann::json& line) {
    callbacks_.on_logged_step(line);
    if (sample_predictions_) sample_predictions_->add_logged_step(line);
  });
}

void TrainingLoop::log_run_start() const {
  const auto& training = config_.training;
  spdlog::info("model {}: {} parameters, {} trained, in {} on {}", config_.model.path,
               format_rounded_count(run_.model->parameters().count_elements()),
               format_rounded_count(run_.training->optimizer.count_trained_elements()),
               engine::to_string(training.precision), device_.str());
  spdlog::info("data {}: {}; {} of {}{}, {}", config_.data.train.name(),
               pluralize(run_.ledger.num_samples() - run_.ledger.count(data::SampleStatus::kDropped), "usable sample"),
               pluralize(run_.total_steps, "step"), training.batch_and_tasks.global_batch_tokens ? "at most " : "",
               pluralize(training.global_batch_size, config_.data.packing ? "pack" : "sample"),
               run_.describe_batch_split(config_));
  for (const auto& line :
       {run_.processor->chat_template().describe(), describe_batch_scaling(training), run_.task_balancer->describe()}) {
    if (!line.empty()) spdlog::info("{}", line);
  }
}

void TrainingLoop::run_steps() {
  enable_graceful_stop();
  step_runner_.emplace(config_, run_, device_, ranks_,
                       [this](report::EventKind kind, std::string message, std::vector<std::string> ids) {
                         report_event(kind, std::move(message), std::move(ids));
                       });
  const bool stops_at_start = is_stop_requested();
  if (run_.is_resumed && !stops_at_start) {
    apply_to_sample_predictions(
        [this](SamplePredictions& predictions) { predictions.predict_with_loaded_checkpoint(run_.state.step); });
  }
  // Loading leaves blocks in the allocator's cache that steps do not need and the plan does not
  // count.
  memory::empty_cache(device_);
  run_missed_evaluation();
  if (sample_predictions_) sample_predictions_->start_clock();
  while (!should_end_training() && !is_stop_requested()) {
    // 1. Draw the samples of the step, exactly the global batch, and plan its micro-batches.
    const auto start = Clock::now();
    PlannedStep step = step_runner_->next(last_step_seconds_);
    memory_watch_.on_step_start();
    // 2. Run forward and backward passes and the optimizer. If memory runs out, the guard repeats
    // them with smaller micro-batches.
    const uint64_t step_seed = derive_stream_seed(seed(), "step", {static_cast<uint64_t>(step.step - 1)});
    const auto objective = run_.task_balancer->make_objective(step.step, step_seed);
    const CompletedStep completed_step =
        step_runner_->run(step, *objective, step_seed, [this, &step] { return compute_step_learning_rates(step); });
    // 3. Report. On a GPU the results arrive during the next step.
    record_step(step, completed_step, objective);
    step_runner_->on_step_end(step, completed_step);
    const double seconds = compute_elapsed_seconds(start);
    pending_step_report_->report.metrics.step_seconds = seconds;
    // The first step also loads kernels.
    if (step.step > first_step_) last_step_seconds_ = seconds;
    if (run_.plan && step.step > first_step_) step_time_recorder_.record_step(step, completed_step, seconds);
    // 4. Evaluate.
    if (run_.state.evaluation.is_due) pending_step_report_->report.metrics.evaluation = evaluate();
    const bool is_best =
        pending_step_report_->report.metrics.evaluation && pending_step_report_->report.metrics.evaluation->is_best;
    const bool saves_checkpoint = should_save_on_all_ranks(is_save_step() || (is_best && config_.output.keep_best));
    if (device_.is_cpu() || saves_checkpoint || pending_step_report_->report.metrics.evaluation)
      finish_pending_report();
    // 5. Report a completed checkpoint, and save.
    saver_.poll();
    if (saves_checkpoint) save();
  }
  finish_pending_report();
  const bool has_completed_steps = run_.state.step > 0;
  if (has_completed_steps && !saver_.is_current_step_saved()) save(/*is_last=*/true);
  saver_.finish();
  if (is_stop_requested()) {
    report_event(
        report::EventKind::kStopped,
        fmt::format("stopped by {} after step {}",
                    get_stop_signal() != 0 ? fmt::format("signal {}", get_stop_signal()) : "a signal to another rank",
                    run_.state.step));
    return;
  }
  if (periodic_evaluation_ && periodic_evaluation_->should_stop_early() && periodic_evaluation_->last_metrics()) {
    report_event(report::EventKind::kStopped, fmt::format("stopped early after step {}: {}", run_.state.step,
                                                          periodic_evaluation_->describe_early_stop()));
  }
  if (has_completed_steps && !is_dry_run()) {
    check_run_has_learned(config_, run_.state, gradient_watch_, run_.is_resumed,
                          periodic_evaluation_ && periodic_evaluation_->should_stop_early());
  }
}

void TrainingLoop::stop_prefetching() {
  if (!step_runner_) return;
  if (const auto* const look_ahead = step_runner_->look_ahead_summary()) look_ahead_summary_ = *look_ahead;
  step_runner_.reset();
}

bool TrainingLoop::has_completed_all_steps() {
  constexpr double kEpochRoundingError = 1e-9;  // rounding error of the epochs
  if (run_.state.step >= run_.total_steps) return true;
  return !config_.training.max_steps &&
         epoch_progress_.at(run_.state.cursor) + kEpochRoundingError >= config_.training.epochs;
}

void TrainingLoop::run_missed_evaluation() {
  if (!run_.state.evaluation.is_due || is_stop_requested()) return;
  const auto evaluation = evaluate();
  if (evaluation) callbacks_.on_deferred_evaluation(run_.state.step, *evaluation);
  if (should_save_on_all_ranks(evaluation.has_value())) save();
}

bool TrainingLoop::should_save_on_all_ranks(bool should_save) const {
  return saver_.is_state_sharded() ? consensus_.any_rank(should_save && ranks_.is_main_process()) : should_save;
}

std::optional<report::EvaluationMetrics> TrainingLoop::evaluate() {
  // On the CPU, evaluations are planned without memory for the copies of a checkpoint.
  if (device_.is_cpu()) saver_.finish();
  // The plan of an evaluation does not count cached blocks of the step.
  if (!device_.is_cpu()) memory::empty_cache(device_);
  memory::reset_peak_memory_stats(device_);
  auto evaluation = [&] {
    const auto allocation_limit = run_.host_plan ? run_.host_plan->make_evaluation_allocation_limit() : nullptr;
    auto metrics = periodic_evaluation_->evaluate(run_.state.step);
    run_.evaluation_set->add_missing_notices(periodic_evaluation_->notices());
    run_.model->parameters().join_remaining_passes();
    return metrics;
  }();
  device_peak_tracker_.update(memory::get_device_memory_stats(device_));
  step_runner_->release_device_memory();
  return evaluation;
}

bool TrainingLoop::should_end_training() {
  return has_completed_all_steps() ||
         (periodic_evaluation_ && consensus_.any_rank(periodic_evaluation_->should_stop_early()));
}

engine::LearningRates TrainingLoop::compute_step_learning_rates(const PlannedStep& step) {
  finish_pending_report();
  saver_.wait_until_state_may_change();
  learning_rates_ = compute_learning_rates(
      config_.training, run_.compute_schedule_factor() *
                            compute_step_lr_factor(config_.training, count_batch_tokens(step.batch.samples)));
  return learning_rates_;
}

void TrainingLoop::record_step(const PlannedStep& step, const CompletedStep& completed_step,
                               const std::shared_ptr<const engine::Objective>& objective) {
  const double epochs_before = epoch_progress_.at(run_.state.cursor);
  ++run_.state.step;
  run_.state.cursor = step.batch.next;
  pending_step_report_.emplace(step, completed_step, objective, device_);
  for (const auto& sample : step.batch.samples) {
    run_.ledger.mark_used(sample.index, sample.id, sample.notices);
    if (sample.shrink_info) run_.ledger.mark_shrunk(sample.index, sample.id, *sample.shrink_info);
  }
  for (const auto& sample : step.batch.remote_samples) {
    if (!ranks_.is_main_process()) {
      run_.ledger.mark_used(sample.index);
      continue;
    }
    const std::string id = run_.records->at_without_media_bytes(sample.index).id;
    run_.ledger.mark_used(sample.index, id, sample.notices);
    if (sample.shrink_info) run_.ledger.mark_shrunk(sample.index, id, *sample.shrink_info);
    pending_step_report_->report.sample_ids.push_back(id);
  }
  if (ranks_.is_main_process() && !run_.ledger.has_precounted_notices())
    notice_logger_.log(run_.ledger.notices(), run_.ledger.dataset_name());
  report::StepMetrics& metrics = pending_step_report_->report.metrics;
  metrics.total_steps = run_.total_steps;
  metrics.epoch = epoch_progress_.at(run_.state.cursor);
  run_.state.evaluation.is_due =
      periodic_evaluation_ &&
      periodic_evaluation_->is_due(run_.state.step, epochs_before, metrics.epoch, has_completed_all_steps());
  metrics.learning_rate = learning_rates_.language_model;
  if (trains_vision_tower_) metrics.vision_learning_rate = learning_rates_.vision_tower;
  if (trains_projector_) metrics.projector_learning_rate = learning_rates_.projector;
  if (run_.model->predicts_masks()) metrics.mask_learning_rate = learning_rates_.masks;
  if (run_.plan) {
    const auto& peaks = step.plan.peaks ? *step.plan.peaks : run_.plan->peaks();
    metrics.predicted_allocated_peak_bytes = peaks.allocated_bytes;
    metrics.predicted_reserved_peak_bytes = peaks.reserved_bytes;
  }
  device_peak_tracker_.update(completed_step.memory);
  if (const auto free = metrics.device_free_bytes) {
    device_peak_tracker_.update_free_bytes(*free, metrics.reserved_bytes);
  }
}

void TrainingLoop::finish_pending_report() {
  if (!pending_step_report_) return;
  pending_step_report_->complete_report();
  run_.task_balancer->update(pending_step_report_->tasks, pending_step_report_->task_weights(),
                             pending_step_report_->report.metrics);
  StepReport report = std::move(pending_step_report_->report);
  pending_step_report_.reset();
  report::StepMetrics& metrics = report.metrics;
  if (is_dry_run()) {
    metrics.is_dry_run = true;
    metrics.loss = metrics.grad_norm = std::numeric_limits<double>::quiet_NaN();
    metrics.loss_scale.reset();
    metrics.tasks.clear();
  } else {
    last_loss_ = metrics.loss;
  }
  if (metrics.skipped) ++run_.state.num_skipped_steps;
  metrics.num_skipped_steps = run_.state.num_skipped_steps;
  metrics.rank_wait_seconds = ranks_.rank_wait_seconds();
  callbacks_.on_step(report);
  memory_watch_.observe_step(report);
  gradient_watch_.observe_step(report);
  anomaly_watch_.observe_step(report);  // last, since it may throw
}

bool TrainingLoop::is_save_step() const {
  return config_.output.save_steps > 0 && run_.state.step % config_.output.save_steps == 0;
}

void TrainingLoop::save(bool is_last) {
  saver_.save(/*continues=*/!is_last && !has_completed_all_steps());
  apply_to_sample_predictions(
      [this](SamplePredictions& predictions) { predictions.on_checkpoint_saved(run_.state.step); });
  step_runner_->release_device_memory();  // of the predictions
}

void TrainingLoop::report_event(report::EventKind kind, std::string message, std::vector<std::string> ids) {
  callbacks_.on_event({.step = run_.state.step, .kind = kind, .message = std::move(message), .ids = std::move(ids)});
}

bool TrainingLoop::try_finish_pending_report() {
  try {
    finish_pending_report();
  } catch (const std::exception&) {
  }
  return !pending_step_report_;
}

void TrainingLoop::finish_after_error(const std::exception& error) {
  saver_.emergency_save(error, [this] { return !try_finish_pending_report(); });
  try {
    report_event(report::EventKind::kFailed, get_message_without_trace(error));
    saver_.write_ledger();
    callbacks_.on_end(/*succeeded=*/false);
  } catch (const std::exception& second_error) {
    spdlog::warn("cannot record the end of the run: {}", second_error.what());
  }
}

}  // namespace vlmtrain::train
