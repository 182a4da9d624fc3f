#pragma once

#include <memory>
#include <optional>

#include "train/loop/periodic_evaluation.h"
#include "train/loop/run_saver.h"
#include "train/loop/run_setup.h"
#include "train/loop/sample_predictions.h"
#include "train/loop/step_runner.h"
#include "train/run/callbacks.h"
#include "train/run/rank_group.h"
#include "train/step/step.h"
#include "train/watch/gradient_watch.h"
#include "train/watch/memory_watch.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/train/stop_request.h"
#include "vlmtrain/train/trainer.h"

namespace vlmtrain::train {

/// One run of a process, from its data set to its last checkpoint.
class TrainingLoop {
 public:
  /// Throws UserError. `config` and `ranks` have to outlive it. `quiet`: without a progress bar.
  TrainingLoop(const Config& config, at::Device device, const RankGroup& ranks, bool quiet);

  /// Trains to the end, or until a stop is asked for. Throws UserError; the newest checkpoint is whole then.
  TrainingSummary train();

 private:
  void add_evaluation_summary(TrainingSummary& summary) const;

  void add_evaluations();

  void add_callbacks(bool quiet);

  void log_run() const;

  /// Runs the steps to the end, with evaluations and checkpoints between them.
  void run_steps();

  /// Destroys loader and look-ahead before the last save, so that nothing decodes ahead any more.
  void end_steps();

  /// Returns whether all steps are done or, with training.epochs, each usable sample was drawn
  /// often enough: samples that turned out bad during the run make fewer steps.
  bool has_finished_steps();

  /// Runs the evaluation that a stop prevented. Its step is reported and saved already.
  void run_missed_evaluation();

  /// Returns rank 0's decision if all ranks write a checkpoint together: evaluation results
  /// differ between ranks by rounding, and a stop may reach only some in the middle of an
  /// evaluation.
  bool should_all_save(bool wants_save) const;

  /// Returns nullopt if a stop was requested meanwhile.
  std::optional<report::EvaluationMetrics> evaluate();

  /// Calls `action` on the rank that writes; other ranks only take part in gathering sharded
  /// weights.
  template <class Action>
  void run_predictions(const Action& action);

  /// Returns the same on all ranks.
  bool is_stop_requested() const { return ranks_.any_rank_stops(stop_signal() != 0); }

  /// Returns the same on all ranks. Evaluation results differ between machines by rounding, so one
  /// rank's early stop counts for all.
  bool is_finished();

  /// Returns the learning rates of a step whose gradients are computed. By then the previous step's
  /// result is known, and with it whether the schedule advances.
  engine::LearningRates compute_rates(const PlannedStep& step);

  void record_step(const PlannedStep& step, const CompletedStep& completed,
                   const std::shared_ptr<const engine::Objective>& objective);

  /// Waits for the results of the previous step and reports them.
  void finish_pending();

  bool is_save_step() const;

  void save(bool is_last = false);

  void report_event(report::EventKind kind, std::string message, std::vector<std::string> ids = {});

  /// Returns whether the results of the last step are lost. Errors of watchers do not affect what
  /// is saved.
  bool metrics_are_lost();

  // Saves and reports what is possible. Errors are logged only, since the first error may cause
  // them, such as a full disk.
  void finish_after_error(const std::exception& error);

  uint64_t seed() const { return static_cast<uint64_t>(config_.training.seed); }

  const Config& config_;
  at::Device device_;
  const RankGroup& ranks_;
  RunSetup run_;
  data::EpochProgress epochs_;
  CallbackList callbacks_;
  MemoryWatch memory_watch_{device_, memory::host_limit_bytes(), callbacks_};
  AnomalyWatch anomaly_watch_{callbacks_};
  GradientWatch gradient_watch_{callbacks_, describe_trained_parts(run_.model->parameters()), run_.has_media};
  data::NewNoticeLogger new_notices_;
  std::optional<SamplePredictions> predictions_;
  std::optional<PeriodicEvaluation> evaluations_;
  RunSaver saver_{config_, run_, ranks_, [this](int64_t step, const std::filesystem::path& folder) {
                    callbacks_.on_event({.step = step,
                                         .kind = report::EventKind::kCheckpoint,
                                         .message = fmt::format("checkpoint: {}", folder.string())});
                  }};
  const engine::Consensus& consensus_ = ranks_.consensus();
  std::optional<StepRunner> runner_;  // set while steps run
  std::optional<LookAheadSummary> look_ahead_summary_;
  std::optional<PendingReport> pending_;
  const bool trains_vision_tower_ = is_component_trained(run_.model->parameters(), nn::Component::kVisionTower);
  const bool trains_projector_ = is_component_trained(run_.model->parameters(), nn::Component::kProjector);
  engine::LearningRates rates_;  // of the newest step
  int64_t first_step_ = run_.state.step + 1;
  double step_seconds_ = 0;
  StepTimes step_times_;
  DevicePeaks peaks_{device_};
  std::optional<double> last_loss_;
};

}  // namespace vlmtrain::train
