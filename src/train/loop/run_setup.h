#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "train/balance.h"
#include "train/data_check/run_records.h"
#include "train/planning/gpu_run_plan.h"
#include "train/planning/host_run_plan.h"
#include "train/run/rank_group.h"
#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/base_weights.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/planning.h"
#include "vlmtrain/train/run_checkpoint.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::train {

/// All parts of a run, ready for its next step: the data is checked, memory planned, and the model
/// loaded or restored from the newest checkpoint.
struct RunSetup {
  /// Checks the data, plans and loads the run. Called by all ranks. `ranks` must outlive the
  /// object. Throws UserError.
  RunSetup(const Config& config, at::Device device, const RankGroup& ranks);

  std::filesystem::path folder;                 ///< get_run_folder()
  std::vector<HoldOutSource> hold_out_sources;  ///< cleared once held_out.json is written
  std::shared_ptr<const data::DataSet> records;
  std::optional<data::SampleOrder> order;  ///< set after the data check
  std::unique_ptr<models::Processor> processor;
  std::optional<EvaluationSet> evaluation_set;  ///< set if the run has evaluations
  CheckpointManager checkpoints;
  RunState state;
  bool is_resumed = false;             ///< the run has a checkpoint
  std::vector<SettingChange> changes;  ///< changed settings, which training.resume=changed allowed
  data::Ledger ledger;                 ///< has the known bad samples
  /// The run was started by an older version, which ignored record keys that are errors now.
  bool earlier_version_ignored_keys = false;
  bool has_media = true;                      ///< some training sample may have an image, video or volume
  std::optional<TaskBalancer> task_balancer;  ///< set after the data check
  int64_t total_steps = 1;
  engine::LearningRateSchedule learning_rate_schedule;  ///< starts at state.schedule_start
  std::optional<GpuRunPlan> plan;                       ///< set on a GPU
  std::unique_ptr<HostRunPlan> host_plan;               ///< set on the CPU
  planner::EvaluationPlan evaluation_plan;              ///< default-constructed without evaluations
  planner::StepConfig step_config;                      ///< of the plan, or of minimum memory if planning failed
  std::unique_ptr<models::VisionLanguageModel> model;
  std::unique_ptr<engine::TrainingState> training;
  std::unique_ptr<models::BaseWeights> base;  ///< null on a virtual GPU

  /// Returns the content of ledger.json: the ledger, notices of the evaluation data and, for
  /// several sources, the share, samples and epochs that were drawn from each.
  nlohmann::ordered_json make_ledger_json() const;
  /// Returns the factor of the learning rate schedule for the next step. Skipped steps do not
  /// advance the schedule.
  double compute_schedule_factor() const;
  /// Describes the split of steps into micro-batches for the log.
  std::string describe_batch_split(const Config& config) const;
  /// Describes the changed settings, and the state that they keep and reset, for the log; empty
  /// without changes.
  std::string describe_setting_changes(const Config& config) const;

 private:
  /// Sets `state`, `changes` and `base`.
  void load_checkpoint_state(const Config& config, at::Device device);
  /// Warns about a data set that was modified between two starts.
  void warn_about_changed_samples(const Config& config, const data::SampleIndex& sample_index) const;
  void init_sample_order(const Config& config, data::SampleIndex& sample_index);
  void restore_ledger(const Config& config);
  void set_total_steps(const Config& config);
  /// Returns the file name of the ledger before a change of the data set.
  std::string get_old_ledger_name() const;
  // Both check the data on rank 0 first. The other ranks then read its cache files.
  data::SampleIndex check_training_data(const Config& config) const;
  void check_evaluation_data(const Config& config, data::SampleIndex& train_index);
  /// Makes the plan. For distributed.sharding=auto, chooses the sharding of `job` so that all ranks
  /// agree.
  void make_plans(const Config& config, at::Device device, planner::Job& job, const planner::Workload& workload,
                  int64_t decode_bytes);
  template <class MakePlan>
  engine::ShardingStrategy find_first_fitting_sharding(const planner::Job& job, const MakePlan& make_plan) const;
  engine::ShardingStrategy all_reduce_max_sharding(engine::ShardingStrategy local_sharding) const;
  void make_plan(const Config& config, at::Device device, const planner::Job& job, planner::Workload workload,
                 int64_t decode_bytes, const std::optional<SavedPlan>& saved_plan);
  std::optional<SavedPlan> load_saved_plan(at::Device device) const;
  void plan_evaluation(const Config& config);
  void load(const Config& config, at::Device device, const planner::Job& job);

  const RankGroup& ranks_;
  nlohmann::ordered_json checkpoint_fingerprint_;  // as saved; null for a new run
  engine::StateMigrationResult migration_result_;  // empty without changed settings
  bool restores_task_weights_ = true;              // GradNorm's weights come from the checkpoint
  bool has_videos_ = false;                        // some checked sample has a video
};

}  // namespace vlmtrain::train
