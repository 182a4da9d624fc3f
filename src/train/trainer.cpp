#include "vlmtrain/train/trainer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>

#include "train/batch_scaling.h"
#include "train/callbacks/callback_list.h"
#include "train/callbacks/epoch_rows.h"
#include "train/callbacks/html_report.h"
#include "train/callbacks/metrics_files.h"
#include "train/callbacks/progress_bar.h"
#include "train/callbacks/tensorboard_events.h"
#include "train/evaluation_in_run.h"
#include "train/pending_report.h"
#include "train/run_lock.h"
#include "train/run_ranks.h"
#include "train/run_saver.h"
#include "train/run_setup.h"
#include "train/sample_predictions.h"
#include "train/step_runner.h"
#include "train/step_times.h"
#include "train/trained_parts.h"
#include "train/watch/anomaly_watch.h"
#include "train/watch/gradient_watch.h"
#include "train/watch/memory_watch.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/first_line.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/data/epoch_progress.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/host.h"
#include "vlmtrain/models/end_tokens.h"
#include "vlmtrain/report/environment.h"
#include "vlmtrain/report/run_lines.h"
#include "vlmtrain/train/setup.h"
#include "vlmtrain/train/stop_request.h"

namespace vlmtrain::train {

namespace {

using Clock = std::chrono::steady_clock;

int64_t tokens_of(const std::vector<data::Sample>& samples) {
  int64_t tokens = 0;
  for (const auto& sample : samples) tokens += sample.tokens();
  return tokens;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Of what LibTorch throws only what happened, not the trace behind it.
std::string reason_of(const std::exception& error) {
  return dynamic_cast<const c10::Error*>(&error) == nullptr ? error.what() : first_line(error.what());
}

report::BestBy compared_by(BestMetric metric) {
  switch (metric) {
    case BestMetric::kExactMatch:
      return report::BestBy::kExactMatch;
    case BestMetric::kDice:
      return report::BestBy::kDice;
    case BestMetric::kLoss:
      break;
  }
  return report::BestBy::kLoss;
}

/// One run, from its data set to its last checkpoint.
class Trainer {
 public:
  Trainer(const Config& config, at::Device device, const RunRanks& ranks, bool quiet)
      : config_(config),
        device_(device),
        ranks_(ranks),
        run_(config, device, ranks),
        epochs_(run_.ledger, *run_.order) {
    ranks.check_same("step to go on from (does each see output.dir?)", std::to_string(run_.state.step));
    if (const auto& shard = run_.training->optimizer.shard(); !shard.is_all() && shard.count < ranks.world_size()) {
      ranks.share_in_groups_of(shard.count);
    }
    ranks.connect(device);
    if (!ranks.is_alone()) run_.training->connect(consensus_);
    refuse_to_learn_nothing();
    new_notices_.pass_over(run_.ledger.notices());
    if (ranks.writes()) add_callbacks(quiet);
    add_evaluations();
    log_run();
    if (run_.resumed) {
      event(report::EventKind::kResumed,
            fmt::format("going on after step {} from {}", run_.state.step, run_.checkpoints.newest()->string()));
    }
    if (!run_.changes.empty()) event(report::EventKind::kChanged, run_.describe_changes(config));
  }

  TrainingSummary train() {
    try {
      loop();
    } catch (const std::exception& error) {
      end_steps();
      end_after(error);
      throw;
    }
    end_steps();
    saver_.write_ledger();
    const bool is_stopped = is_to_stop();
    if (run_.plan) {
      run_.plan->compare(most_, device_used_bytes(), run_.state.step, twin_summary_ ? &*twin_summary_ : nullptr);
      // Who asks a run to stop does not wait.
      if (!is_stopped && ranks_.writes()) run_.plan->remember(beside_allocator_bytes_, most_, step_times_);
    }
    if (run_.host) run_.host->compare(run_.state.step);
    if (const auto words = ranks_.traffic_words(run_.state.step + 1 - first_step_); !words.empty()) {
      spdlog::info("{}{}", words, ranks_.waiting_words());
    }
    predict([](SamplePredictions& predictions) { predictions.finish(); });
    callbacks_.end(/*well=*/true);
    TrainingSummary summary{
        .stopped = is_stopped && (!is_over() || run_.state.evaluation.is_due),
        .steps = run_.state.step,
        .last_loss = last_loss_,
        .checkpoint = run_.checkpoints.newest(),
        .reserved_peak_bytes = most_.reserved_peak_bytes,
        .planned_peak_bytes = run_.plan ? std::optional{run_.plan->peaks().reserved_bytes} : std::nullopt,
        .skipped_steps = run_.state.skipped_steps,
        .callback_seconds = callbacks_.seconds() + (predictions_ ? predictions_->seconds() : 0),
        .save_seconds = saver_.seconds()};
    if (evaluations_) tell_of_evaluations(summary);
    return summary;
  }

 private:
  /// What the data and the trained parts show before the first step.
  void refuse_to_learn_nothing() const {
    const auto& parameters = run_.model->parameters();
    if (run_.has_media || !trains_media_parts_alone(parameters)) return;
    throw usage_error(
        "{}: trained are {}, and none of the samples of {} has an image, video or volume, so no trained weight would "
        "get a gradient; train another part, or check with vlmtrain inspect why the samples have no media",
        config_.lora.rank > 0 ? "lora.target_modules" : "model.freeze_language_model", trained_parts(parameters),
        config_.data.train.name());
  }

  void tell_of_evaluations(TrainingSummary& summary) const {
    summary.early_stopped = evaluations_->is_enough();
    summary.best_metric = name_of(config_.evaluation.best_metric);
    summary.best_step = run_.state.evaluation.best_step;
    summary.best_value = run_.state.evaluation.best_value;
    if (config_.output.keep_best) summary.best_checkpoint = best_checkpoint(run_.folder);
    summary.last_evaluation = evaluations_->newest();
  }

  void add_evaluations() {
    if (!run_.evaluated) {
      // What was the best stays so, and its checkpoint: evaluations may be turned on again.
      run_.state.evaluation.is_due = false;
      return;
    }
    forget_best_that_is_gone();
    evaluation::EvaluationSettings settings{
        .device = device_,
        .batch_size = run_.evaluation_plan.batch_size,
        .layout = run_.evaluation_plan.layout,
        .num_workers = config_.data.num_workers,
        .answers = config_.evaluation.answers,
        .max_new_tokens = config_.evaluation.max_new_tokens,
        .end_token_ids = models::end_token_ids(config_.model.path, *run_.processor, config_.model.adapter),
        .on_bad_sample = config_.data.on_bad_sample};
    if (run_.host) settings.bytes_ahead = run_.host->evaluation_bytes_ahead();
    settings.is_to_stop = [] { return stop_signal() != 0; };
    settings.on_event = [this](report::EventKind kind, const std::string& message, std::vector<std::string> ids) {
      event(kind, fmt::format("step {}: {}", run_.state.step, message), std::move(ids));
    };
    evaluations_.emplace(config_, *run_.evaluated, *run_.model, *run_.processor, std::move(settings),
                         /*has_values=*/!is_rehearsal(), run_.state.evaluation);
    if (ranks_.writes()) run_.checkpoints.link_best(run_.state.evaluation.best_step);
  }

  /// Someone removed its checkpoint: a later one that is not as good is better than none.
  void forget_best_that_is_gone() {
    EvaluationState& evaluation = run_.state.evaluation;
    if (!config_.output.keep_best || !evaluation.best_step || best_checkpoint(run_.folder)) return;
    spdlog::warn("the best checkpoint so far, step-{}, is not there any more: the best evaluation begins anew",
                 *evaluation.best_step);
    evaluation.best_step.reset();
    evaluation.best_value.reset();
    evaluation.best_loss.reset();
  }

  void add_callbacks(bool quiet) {
    const int64_t done = run_.state.step;
    callbacks_.add(std::make_unique<MetricsFiles>(run_.folder, done, config_.output.log_samples));
    callbacks_.add(std::make_unique<EpochRows>(run_.folder));
    if (config_.output.sample_predictions > 0 && !is_rehearsal()) {
      const bool has_eval = !config_.data.eval.empty();
      const auto records = has_eval ? evaluation_records(config_) : run_.records;
      predictions_.emplace(*records, config_.output.sample_predictions, *run_.model, *run_.processor, device_,
                           config_.output.sample_predictions_share, run_.folder, callbacks_);
    }
    callbacks_.add(std::make_unique<ProgressBar>(run_.total_steps, quiet, compared_by(config_.evaluation.best_metric)));
    if (config_.output.tensorboard && !is_rehearsal()) {
      callbacks_.add(std::make_unique<TensorBoardEvents>(run_.folder, done));
    }
    if (config_.output.report) callbacks_.add(std::make_unique<HtmlReport>(run_.folder));
    if (!run_.resumed) return;
    report::read_lines(run_.folder / "metrics.jsonl", [this](const nlohmann::json& line) {
      callbacks_.past_step(line);
      if (predictions_) predictions_->past_step(line);
    });
  }

  bool trains(nn::Component component) const {
    return std::ranges::any_of(run_.model->parameters().all(), [component](const nn::Parameter& parameter) {
      return parameter.component == component && parameter.tensor.requires_grad();
    });
  }

  void log_run() const {
    const auto& training = config_.training;
    spdlog::info("model {}: {} parameters, {} trained, in {} on {}", config_.model.path,
                 number_words(run_.model->parameters().total_elements()),
                 number_words(run_.training->optimizer.trained_elements()), engine::name_of(training.precision),
                 device_.str());
    spdlog::info("data {}: {} usable samples; {} steps of {}{} {}, {}", config_.data.train.name(),
                 run_.ledger.samples() - run_.ledger.count(data::SampleStatus::kDropped), run_.total_steps,
                 training.balance.global_batch_tokens ? "at most " : "", training.global_batch_size,
                 config_.data.packing ? "packs" : "samples", run_.describe_cut(config_));
    for (const auto& line :
         {run_.processor->chat_template().description(), describe_batch_scaling(training), run_.tasks->description()}) {
      if (!line.empty()) spdlog::info("{}", line);
    }
  }

  void loop() {
    stop_between_steps();
    runner_.emplace(config_, run_, device_, ranks_,
                    [this](report::EventKind kind, std::string message, std::vector<std::string> ids) {
                      event(kind, std::move(message), std::move(ids));
                    });
    const bool has_to_stop = is_to_stop();
    if (run_.resumed && !has_to_stop) {
      predict([this](SamplePredictions& predictions) { predictions.resume(run_.state.step); });
    }
    // What loading left behind is not what a step leaves behind.
    memory::release_unused(device_);
    make_up_evaluation();
    if (predictions_) predictions_->begin();
    while (!is_over() && !is_to_stop()) {
      // 1. The samples of this step, exactly the global batch, and how its micro-batches are to be cut.
      const auto start = Clock::now();
      PlannedStep step = runner_->next(step_seconds_);
      memory_watch_.before_step();
      // 2. Forward and backward passes, then the optimizer; over again in smaller pieces if memory runs out.
      const uint64_t step_seed = stream_seed(seed(), "step", {static_cast<uint64_t>(step.step - 1)});
      const auto objective = run_.tasks->objective(step.step, step_seed);
      const DoneStep done = runner_->run(step, *objective, step_seed, [this, &step] { return rates_of(step); });
      // 3. Report. On a GPU the numbers arrive during the next step.
      take_note(step, done, objective);
      runner_->settle(step, done);
      const double seconds = seconds_since(start);
      pending_->report.metrics.step_seconds = seconds;
      // The first step loads kernels: no measure of a step.
      if (step.step > first_step_) step_seconds_ = seconds;
      if (run_.plan && step.step > first_step_) step_times_.note(step, done, seconds);
      // 4. Evaluate.
      if (run_.state.evaluation.is_due) pending_->report.metrics.evaluation = evaluate_now();
      const bool is_best = pending_->report.metrics.evaluation && pending_->report.metrics.evaluation->is_best;
      const bool saves = all_save(is_save_step() || (is_best && config_.output.keep_best));
      if (device_.is_cpu() || saves || pending_->report.metrics.evaluation) finish_pending();
      // 5. Save, and tell of what was written meanwhile.
      saver_.look();
      if (saves) save();
    }
    finish_pending();
    const bool has_begun = run_.state.step > 0;
    if (has_begun && !saver_.is_saved()) save(/*is_last=*/true);
    saver_.finish();
    if (is_to_stop()) {
      event(report::EventKind::kStopped,
            fmt::format("stopped by {} after step {}",
                        stop_signal() != 0 ? fmt::format("signal {}", stop_signal()) : "a signal to another rank",
                        run_.state.step));
      return;
    }
    if (evaluations_ && evaluations_->is_enough() && evaluations_->newest()) {
      event(report::EventKind::kStopped,
            fmt::format("stopped early after step {}: {}", run_.state.step, evaluations_->why_enough()));
    }
    if (has_begun && !is_rehearsal()) {
      refuse_to_end_untrained();
    }
  }

  /// Loader and twin go with the last step, before anything is saved for the last time: nothing decodes ahead any more.
  void end_steps() {
    if (!runner_) return;
    if (const auto* const twin = runner_->twin_summary()) twin_summary_ = *twin;
    runner_.reset();
  }

  void refuse_to_end_untrained() const {
    if (evaluations_ && evaluations_->is_enough() && !run_.state.evaluation.best_value) {
      const BestMetric metric = config_.evaluation.best_metric;
      const bool by_loss = metric == BestMetric::kLoss;
      throw run_error(
          "none of the run's evaluations had a loss that is finite{}, so none of its checkpoints is known to be of "
          "use; "
          "lower training.learning_rate{}, and start again in another output.dir",
          by_loss ? "" : fmt::format(" and a value of training.best_metric={}", name_of(metric)),
          by_loss ? "" : " where the loss is not, else take training.best_metric=loss");
    }
    if (gradient_watch_.is_without_gradient() && !run_.resumed) {
      throw run_error(
          "the gradient of all trained weights was zero in each step of the run, so nothing was learned: {}; then "
          "start "
          "again in another output.dir",
          gradient_watch_.reason());
    }
    if (run_.state.skipped_steps < run_.state.step) return;
    throw run_error(
        "all {} steps of the run were skipped, since loss or gradients were not finite: the weights are those of {}. "
        "Lower training.learning_rate, or look at that checkpoint and at the samples that events.jsonl names; then "
        "start again in another output.dir",
        run_.state.step, config_.model.path);
  }

  /// All steps are done, or with training.epochs each usable sample was taken as often: samples that turned out to be
  /// bad on the way make that fewer steps.
  bool has_done_its_steps() {
    constexpr double kRounding = 1e-9;
    if (run_.state.step >= run_.total_steps) return true;
    return !config_.training.max_steps && epochs_.at(run_.state.cursor) + kRounding >= config_.training.epochs;
  }

  /// What a stop interrupted. The step's line is written, its checkpoint too.
  void make_up_evaluation() {
    if (!run_.state.evaluation.is_due || is_to_stop()) return;
    const auto evaluation = evaluate_now();
    if (evaluation) callbacks_.late_evaluation(run_.state.step, *evaluation);
    if (all_save(evaluation.has_value())) save();
  }

  /// Where all ranks write a checkpoint together, whether the first one wants it: numbers of an evaluation may differ
  /// by rounding, and not all are stopped in the middle of one.
  bool all_save(bool own) const { return saver_.shares_state() ? consensus_.any(own && ranks_.writes()) : own; }

  /// Nothing where a stop was asked for meanwhile.
  std::optional<report::EvaluationMetrics> evaluate_now() {
    // On the CPU its batches are as large as fits beside no copies.
    if (device_.is_cpu()) saver_.finish();
    // What the step left in the cache would come on top of what was planned.
    if (!device_.is_cpu()) memory::release_unused(device_);
    memory::reset_peaks(device_);
    auto evaluation = [&] {
      const auto host_limit = run_.host ? run_.host->guard_of_evaluation() : nullptr;
      auto own = evaluations_->after(run_.state.step);
      run_.evaluated->take_notices(evaluations_->notices());
      run_.model->parameters().follow();
      return own;
    }();
    raise_peaks(memory::device_memory(device_));
    runner_->leave_device_as_found();
    return evaluation;
  }

  /// By the rank that writes; the others take part where all have parts of the weights.
  template <class Act>
  void predict(const Act& act) {
    if (predictions_) act(*predictions_);
    run_.model->parameters().follow();
  }

  /// By all processes, or by none.
  bool is_to_stop() const { return ranks_.any_stops(stop_signal() != 0); }

  /// Evaluations of other machines differ by rounding: one is enough for all.
  bool is_over() { return has_done_its_steps() || (evaluations_ && consensus_.any(evaluations_->is_enough())); }

  /// Asked once the gradients are there: the step before is known by then, and with it whether the schedule has moved
  /// on.
  engine::LearningRates rates_of(const PlannedStep& step) {
    finish_pending();
    rates_ = learning_rates(config_.training,
                            run_.schedule_factor() * step_factor(config_.training, tokens_of(step.batch.samples)));
    return rates_;
  }

  void take_note(const PlannedStep& step, const DoneStep& done,
                 const std::shared_ptr<const engine::Objective>& objective) {
    const double epochs_before = epochs_.at(run_.state.cursor);
    ++run_.state.step;
    run_.state.cursor = step.batch.next;
    pending_.emplace(step, done, objective, device_);
    for (const auto& sample : step.batch.samples) {
      run_.ledger.mark_used(sample.index, sample.id, sample.notices);
      if (sample.shrunk) run_.ledger.mark_shrunk(sample.index, sample.id, *sample.shrunk);
    }
    for (const auto& sample : step.batch.elsewhere) {
      if (!ranks_.writes()) {
        run_.ledger.mark_used(sample.index);
        continue;
      }
      const std::string id = run_.records->text_at(sample.index).id;
      run_.ledger.mark_used(sample.index, id, sample.notices);
      if (sample.shrunk) run_.ledger.mark_shrunk(sample.index, id, *sample.shrunk);
      pending_->report.sample_ids.push_back(id);
    }
    if (ranks_.writes() && !run_.ledger.has_all_notices())
      new_notices_.log(run_.ledger.notices(), run_.ledger.dataset());
    report::StepMetrics& metrics = pending_->report.metrics;
    metrics.total_steps = run_.total_steps;
    metrics.epoch = epochs_.at(run_.state.cursor);
    run_.state.evaluation.is_due =
        evaluations_ && evaluations_->is_due(run_.state.step, epochs_before, metrics.epoch, has_done_its_steps());
    metrics.learning_rate = rates_.language_model;
    if (trains_vision_tower_) metrics.vision_learning_rate = rates_.vision_tower;
    if (trains_projector_) metrics.projector_learning_rate = rates_.projector;
    if (run_.model->draws_masks()) metrics.mask_learning_rate = rates_.masks;
    if (run_.plan) {
      const auto& predicted = step.plan.peaks ? *step.plan.peaks : run_.plan->peaks();
      metrics.predicted_allocated_peak_bytes = predicted.allocated_bytes;
      metrics.predicted_peak_bytes = predicted.reserved_bytes;
    }
    raise_peaks(done.memory);
    if (const auto free = metrics.device_free_bytes) {
      const int64_t beside = memory::describe(device_).total_bytes - *free - metrics.reserved_bytes;
      beside_allocator_bytes_ = std::max(beside_allocator_bytes_, beside);
      device_least_free_bytes_ = std::min(device_least_free_bytes_.value_or(*free), *free);
    }
  }

  void raise_peaks(const memory::DeviceMemory& memory) {
    most_.allocated_peak_bytes = std::max(most_.allocated_peak_bytes, memory.allocated_peak_bytes);
    most_.reserved_peak_bytes = std::max(most_.reserved_peak_bytes, memory.reserved_peak_bytes);
  }

  /// Waits for the numbers of the step before and hands them on.
  void finish_pending() {
    if (!pending_) return;
    pending_->read();
    run_.tasks->learn(pending_->tasks, pending_->task_weights(), pending_->report.metrics);
    StepReport done = std::move(pending_->report);
    pending_.reset();
    report::StepMetrics& metrics = done.metrics;
    if (is_rehearsal()) {
      metrics.rehearsed = true;
      metrics.loss = metrics.grad_norm = std::numeric_limits<double>::quiet_NaN();
      metrics.loss_scale.reset();
      metrics.tasks.clear();
    } else {
      last_loss_ = metrics.loss;
    }
    if (metrics.skipped) ++run_.state.skipped_steps;
    metrics.skipped_steps = run_.state.skipped_steps;
    metrics.rank_wait_seconds = ranks_.waited_seconds();
    callbacks_.step(done);
    memory_watch_.look_at(done);
    gradient_watch_.look_at(done);
    anomaly_watch_.look_at(done);  // last: it may end the run
  }

  bool is_save_step() const {
    return config_.output.save_steps > 0 && run_.state.step % config_.output.save_steps == 0;
  }

  void save(bool is_last = false) {
    saver_.save(/*goes_on=*/!is_last && !has_done_its_steps());
    predict([this](SamplePredictions& predictions) { predictions.after_checkpoint(run_.state.step); });
    runner_->leave_device_as_found();  // by predictions
  }

  void event(report::EventKind kind, std::string message, std::vector<std::string> ids = {}) {
    callbacks_.event({.step = run_.state.step, .kind = kind, .message = std::move(message), .ids = std::move(ids)});
  }

  /// Most of the card that was in use at a step's end, by whomever.
  int64_t device_used_bytes() const {
    if (!device_least_free_bytes_) return 0;
    return memory::describe(device_).total_bytes - *device_least_free_bytes_;
  }

  /// Of the last step, where they cannot be had any more. What a watcher throws does not concern what is saved.
  bool numbers_are_lost() {
    try {
      finish_pending();
    } catch (const std::exception&) {
    }
    return pending_.has_value();
  }

  // What stopped the run, such as a full disk, may also be in the way here; it is the error to report.
  void end_after(const std::exception& error) {
    saver_.save_before_the_end(error, [this] { return numbers_are_lost(); });
    try {
      event(report::EventKind::kFailed, reason_of(error));
      saver_.write_ledger();
      callbacks_.end(/*well=*/false);
    } catch (const std::exception& another) {
      spdlog::warn("the run's last words were not written: {}", another.what());
    }
  }

  uint64_t seed() const { return static_cast<uint64_t>(config_.training.seed); }

  const Config& config_;
  at::Device device_;
  const RunRanks& ranks_;
  RunSetup run_;
  data::EpochProgress epochs_;
  CallbackList callbacks_;
  MemoryWatch memory_watch_{device_, memory::host_limit_bytes(), callbacks_};
  AnomalyWatch anomaly_watch_{callbacks_};
  GradientWatch gradient_watch_{callbacks_, trained_parts(run_.model->parameters()), run_.has_media};
  data::NewNotices new_notices_;
  std::optional<SamplePredictions> predictions_;
  std::optional<EvaluationInRun> evaluations_;
  RunSaver saver_{config_, run_, ranks_, [this](int64_t step, const std::filesystem::path& folder) {
                    callbacks_.event({.step = step,
                                      .kind = report::EventKind::kCheckpoint,
                                      .message = fmt::format("checkpoint: {}", folder.string())});
                  }};
  const engine::Consensus& consensus_ = ranks_.consensus();
  std::optional<StepRunner> runner_;  // while steps are done
  std::optional<TwinSummary> twin_summary_;
  std::optional<PendingReport> pending_;
  const bool trains_vision_tower_ = trains(nn::Component::kVisionTower);
  const bool trains_projector_ = trains(nn::Component::kProjector);
  engine::LearningRates rates_;  // of the newest step
  int64_t first_step_ = run_.state.step + 1;
  double step_seconds_ = 0;
  StepTimes step_times_;
  int64_t beside_allocator_bytes_ = 0;              // of the card in use, at most, at a step's end
  memory::DeviceMemory most_;                       // peaks over all steps
  std::optional<int64_t> device_least_free_bytes_;  // at a step's end
  std::optional<double> last_loss_;
};

void create_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error == std::errc::not_a_directory || error == std::errc::file_exists) {
    throw usage_error(
        "output.dir: {} cannot be a folder, since a file has that name or one on the way to it; choose "
        "another",
        folder.string());
  }
  if (error) {
    throw run_error("output.dir: the folder {} cannot be made: {}; choose another, or make room for it",
                    folder.string(), error.message());
  }
}

TrainingSummary train_as_rank(const Config& config, const std::string& resolved_yaml, at::Device device,
                              const RunRanks& ranks, bool quiet) {
  std::optional<RunLock> lock;
  ranks.in_turn([&] {
    create_folder(run_folder(config));
    if (ranks.writes()) lock.emplace(run_folder(config));
  });
  if (!ranks.writes()) log_to_file(run_folder(config) / fmt::format("rank-{}.log", ranks.rank()));
  auto trainer = std::make_unique<Trainer>(config, device, ranks, quiet);
  if (ranks.writes()) {
    io::write_file(run_folder(config) / "config.yaml", resolved_yaml);
    io::write_file(run_folder(config) / "environment.json", report::Environment::collect(device).to_json());
  }
  try {
    return trainer->train();
  } catch (const c10::AcceleratorError&) {
    // To free what a broken device knows of throws in destructors, which would end the process without a word.
    static_cast<void>(trainer.release());
    throw;
  }
}

}  // namespace

TrainingSummary train(const Config& config, const std::string& resolved_yaml, at::Device device, bool quiet,
                      const std::optional<distributed::Launch>& launch) {
  check_keys(config);
  const RunRanks ranks(launch, std::chrono::seconds(config.distributed.rendezvous_seconds));
  TrainingSummary summary;
  ranks.telling_failures([&] {
    check_ranks(config, ranks.world_size());
    ranks.check_same("program", report::Environment::commit_of_program());
    ranks.check_same("configuration", ContentHash().add(resolved_yaml).text());
    summary = train_as_rank(config, resolved_yaml, device, ranks, quiet);
  });
  return summary;
}

}  // namespace vlmtrain::train
