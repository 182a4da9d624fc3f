#pragma once

#include <memory>
#include <optional>

#include "train/loop/periodic_evaluation.h"
#include "train/loop/run_saver.h"
#include "train/loop/run_setup.h"
#include "train/loop/sample_predictions.h"
#include "train/loop/step_runner.h"
#include "train/loop/watches.h"
#include "train/run/callbacks.h"
#include "train/run/rank_group.h"
#include "train/step/step.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/train/stop_request.h"
#include "vlmtrain/train/trainer.h"

namespace vlmtrain::train {

/// A training run of this process, from the data check to the last checkpoint. All ranks make the
/// same calls. Not thread-safe.
class TrainingLoop {
 public:
  /// Sets the run up: checks the data, plans, and loads the model. `config` and `ranks` must
  /// outlive the object. `quiet`: no progress bar. Throws UserError.
  TrainingLoop(const Config& config, at::Device device, const RankGroup& ranks, bool quiet);

  /// Trains to the end or until a stop is requested. Called once. Throws UserError; the newest
  /// checkpoint is complete then, and the object can only be destroyed.
  TrainingSummary train();

 private:
  void add_evaluation_summary(TrainingSummary& summary) const;

  void add_periodic_evaluation();

  void add_callbacks(bool quiet);

  void log_run_start() const;

  /// Runs the steps to the end, with evaluations and checkpoints between them.
  void run_steps();

  /// Destroys the loader and the look-ahead after the last step, so that no thread prefetches
  /// samples.
  void stop_prefetching();

  /// Returns whether all steps are done. With training.epochs the run may end earlier: samples that
  /// turn out to be bad during the run shorten the epochs.
  bool has_completed_all_steps();

  /// Runs the evaluation that a stop of an earlier process prevented. Its step was reported and
  /// saved then.
  void run_missed_evaluation();

  /// Returns whether to save now. If all ranks write a checkpoint together, returns rank 0's
  /// decision, because `should_save` may differ between ranks: evaluation results differ by
  /// rounding, and a stop may reach only some ranks during an evaluation.
  bool should_save_on_all_ranks(bool should_save) const;

  /// Evaluates the model. Returns nullopt if a stop was requested meanwhile.
  std::optional<report::EvaluationMetrics> evaluate();

  /// Calls `action` with the sample predictions on rank 0. Other ranks only take part in the
  /// all-gathers of sharded weights.
  template <class Action>
  void apply_to_sample_predictions(const Action& action);

  /// Returns whether a stop was requested on any rank. A collective: all ranks must call it.
  bool is_stop_requested() const { return ranks_.any_rank_stops(get_stop_signal() != 0); }

  /// Returns whether the run ends after the newest step, the same on all ranks. Evaluation results
  /// differ between machines by rounding, so the early stop of one rank stops all.
  bool should_end_training();

  /// Returns the learning rates of a step whose gradients are computed. First waits for the results
  /// of the previous step, since the schedule does not advance if that step was skipped.
  engine::LearningRates compute_step_learning_rates(const PlannedStep& step);

  /// Updates state, ledger and metrics after a step. Its loss is not known yet.
  void record_step(const PlannedStep& step, const CompletedStep& completed_step,
                   const std::shared_ptr<const engine::Objective>& objective);

  /// Waits for the results of the previous step and reports them.
  void finish_pending_report();

  /// Returns whether the newest step is a multiple of output.save_steps.
  bool is_save_step() const;

  void save(bool is_last = false);

  void report_event(report::EventKind kind, std::string message, std::vector<std::string> ids = {});

  /// Tries to read and report the results of the last step. Returns whether they are known. Ignores
  /// errors of watches and callbacks, which do not affect what is saved.
  bool try_finish_pending_report();

  /// Saves the completed steps if possible, and reports `error`. Only logs further errors, which
  /// may have the same cause, such as a full disk.
  void finish_after_error(const std::exception& error);

  uint64_t seed() const { return static_cast<uint64_t>(config_.training.seed); }

  const Config& config_;
  at::Device device_;
  const RankGroup& ranks_;
  RunSetup run_;
  data::EpochProgress epoch_progress_;
  CallbackList callbacks_;
  MemoryWatch memory_watch_{device_, memory::get_host_limit_bytes(), callbacks_};
  AnomalyWatch anomaly_watch_{callbacks_};
  GradientWatch gradient_watch_{callbacks_, describe_trained_parts(run_.model->parameters()), run_.has_media};
  data::UniqueNoticeLogger notice_logger_;
  std::optional<SamplePredictions> sample_predictions_;
  std::optional<PeriodicEvaluation> periodic_evaluation_;
  RunSaver saver_{config_, run_, ranks_, [this](int64_t step, const std::filesystem::path& folder) {
                    callbacks_.on_event({.step = step,
                                         .kind = report::EventKind::kCheckpoint,
                                         .message = fmt::format("checkpoint: {}", folder.string())});
                  }};
  const engine::Consensus& consensus_ = ranks_.consensus();
  std::optional<StepRunner> step_runner_;  // set while steps run
  std::optional<LookAheadSummary> look_ahead_summary_;
  std::optional<PendingStepReport> pending_step_report_;  // of the newest step, until its results have arrived
  const bool trains_vision_tower_ = is_component_trained(run_.model->parameters(), nn::Component::kVisionTower);
  const bool trains_projector_ = is_component_trained(run_.model->parameters(), nn::Component::kProjector);
  engine::LearningRates learning_rates_;  // of the newest step
  int64_t first_step_ = run_.state.step + 1;
  double last_step_seconds_ = 0;  // duration of the newest step; 0 before the second
  StepTimeRecorder step_time_recorder_;
  DevicePeakMemoryTracker device_peak_tracker_{device_};
  std::optional<double> last_loss_;  // of the newest reported step
};

}  // namespace vlmtrain::train
