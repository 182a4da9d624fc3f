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
#include "vlmtrain/data/epoch_progress.h"
#include "vlmtrain/data/ledger.h"
#include "vlmtrain/memory/host.h"
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

  void run_steps();

  /// Loader and twin go with the last step, before anything is saved for the last time: nothing decodes ahead any more.
  void end_steps();

  /// All steps are done, or with training.epochs each usable sample was taken as often: samples that turned out to be
  /// bad on the way make that fewer steps.
  bool has_finished_steps();

  /// What a stop interrupted. The step's line is written, its checkpoint too.
  void run_missed_evaluation();

  /// Where all ranks write a checkpoint together, whether the first one wants it: numbers of an evaluation may differ
  /// by rounding, and not all are stopped in the middle of one.
  bool should_all_save(bool wants_save) const;

  /// Nothing where a stop was asked for meanwhile.
  std::optional<report::EvaluationMetrics> evaluate();

  /// By the rank that writes; the others take part where all have parts of the weights.
  template <class Action>
  void run_predictions(const Action& action);

  /// By all processes, or by none.
  bool is_stop_requested() const { return ranks_.any_rank_stops(stop_signal() != 0); }

  /// Evaluations of other machines differ by rounding: one is enough for all.
  bool is_finished();

  /// Asked once the gradients are there: the step before is known by then, and with it whether the schedule has moved
  /// on.
  engine::LearningRates compute_rates(const PlannedStep& step);

  void record_step(const PlannedStep& step, const CompletedStep& completed,
                   const std::shared_ptr<const engine::Objective>& objective);

  /// Waits for the numbers of the step before and hands them on.
  void finish_pending();

  bool is_save_step() const;

  void save(bool is_last = false);

  void report_event(report::EventKind kind, std::string message, std::vector<std::string> ids = {});

  /// Of the last step, where they cannot be had any more. What a watcher throws does not concern what is saved.
  bool metrics_are_lost();

  // What stopped the run, such as a full disk, may also be in the way here; it is the error to report.
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
  std::optional<StepRunner> runner_;  // while steps are done
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
