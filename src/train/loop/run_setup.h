#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "train/balance.h"
#include "train/data_check/evaluation_set.h"
#include "train/planning/gpu_run_plan.h"
#include "train/planning/host_run_plan.h"
#include "train/planning/saved_plan.h"
#include "train/run/rank_group.h"
#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/ledger.h"
#include "vlmtrain/engine/schedule.h"
#include "vlmtrain/engine/training.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_changes.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

/// All that a run consists of, ready for its next step: planned, loaded, and where the newest checkpoint left off.
struct RunSetup {
  /// Throws UserError.
  RunSetup(const Config& config, at::Device device, const RankGroup& ranks);

  std::filesystem::path folder;
  std::vector<SourceSplit> source_splits;  ///< until held_out.json is written
  std::shared_ptr<const data::DataSet> records;
  std::optional<data::SampleOrder> order;  ///< once the samples were looked at
  std::unique_ptr<models::Processor> processor;
  std::optional<EvaluationSet> evaluation_set;  ///< where the run has evaluations
  RunCheckpoints checkpoints;
  RunState state;
  bool resumed = false;
  std::vector<SettingChange> changes;  ///< that the run goes on with, by training.resume: changed
  data::Ledger ledger;                 ///< with the bad samples that are known
  /// The checkpoint is of a version that passed over keys which are refused now.
  bool began_ignoring_keys = false;
  bool has_media = true;             ///< a sample that is trained on may have an image, video or volume
  std::optional<TaskBalance> tasks;  ///< once the samples were looked at
  int64_t total_steps = 1;
  engine::Schedule schedule;                ///< from state.schedule_start
  std::optional<GpuRunPlan> plan;           ///< on a GPU
  std::unique_ptr<HostRunPlan> host_plan;   ///< on the CPU
  planner::EvaluationPlan evaluation_plan;  ///< where the run has evaluations
  planner::StepConfig step_config;
  std::unique_ptr<models::VisionLanguageModel> model;
  std::unique_ptr<engine::Training> training;
  std::unique_ptr<models::BaseWeights> base;  ///< null on a virtual card

  /// The ledger, and of several sources or tasks what was drawn of each: its share, samples and epochs of its own.
  nlohmann::ordered_json make_ledger_json() const;
  /// What the learning rates of the next step are multiplied by.
  double schedule_factor() const;
  /// How steps are cut into micro-batches, for people.
  std::string describe_split(const Config& config) const;
  /// What of the run goes on and what begins anew, for people; empty where nothing was changed.
  std::string describe_changes(const Config& config) const;

 private:
  void find_checkpoint(const Config& config);
  /// Of a data set that was changed while the run stood still.
  void warn_about_changed_samples(const Config& config, const data::SampleIndex& sample_index) const;
  void make_order(const Config& config, data::SampleIndex& sample_index);
  void restore_ledger(const Config& config);
  void set_total_steps(const Config& config);
  /// Of the data set before, where that has changed.
  std::string get_old_ledger_name() const;
  /// Both where rank 0 has written what it found out, for the others to read.
  data::SampleIndex check_training_data(const Config& config) const;
  void check_evaluation_data(const Config& config, data::SampleIndex& train_index);
  /// Settles `job`'s sharding, too, where that is chosen.
  void make_plans(const Config& config, at::Device device, planner::Job& job, const planner::Workload& workload,
                  int64_t decode_bytes);
  template <class MakePlan>
  engine::Sharding find_first_fitting_sharding(const planner::Job& job, const MakePlan& make_plan) const;
  engine::Sharding find_max_sharding(engine::Sharding own_sharding) const;
  void make_plan(const Config& config, at::Device device, const planner::Job& job, planner::Workload workload,
                 int64_t decode_bytes, const std::optional<SavedPlan>& saved_plan);
  std::optional<SavedPlan> load_saved_plan(at::Device device) const;
  void plan_evaluation(const Config& config);
  void load(const Config& config, at::Device device, const planner::Job& job);

  const RankGroup& ranks_;
  nlohmann::ordered_json old_fingerprint_;  // the checkpoint's fingerprint
  engine::MigratedState migrated_state_;    // where settings were changed
  bool keeps_task_weights_ = true;          // what GradNorm has learnt
  bool has_videos_ = false;                 // among the samples that were looked at
};

}  // namespace vlmtrain::train
