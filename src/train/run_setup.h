#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "train/evaluation_set.h"
#include "train/host_run.h"
#include "train/kept_choices.h"
#include "train/run_plan.h"
#include "train/run_ranks.h"
#include "train/task_balance.h"
#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/ledger.h"
#include "vlmtrain/engine/schedule.h"
#include "vlmtrain/engine/training.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_changes.h"
#include "vlmtrain/train/run_checkpoint.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

/// Whether the run is on a virtual card: all is done but arithmetic, so there are no values and nothing to save.
bool is_rehearsal();

/// output.dir; of a rehearsal a folder in it, away from the run's own results.
std::filesystem::path run_folder(const Config& config);

/// All that a run consists of, ready for its next step: planned, loaded, and where the newest checkpoint left off.
struct RunSetup {
  /// Throws UserError.
  RunSetup(const Config& config, at::Device device, const RunRanks& ranks);

  std::filesystem::path folder;
  std::vector<DividedSource> divided;  ///< until held_out.json is written
  std::shared_ptr<const data::DataSet> records;
  std::optional<data::DrawOrder> order;  ///< once the samples were looked at
  std::unique_ptr<models::Processor> processor;
  std::optional<EvaluationSet> evaluated;  ///< where the run has evaluations
  RunCheckpoints checkpoints;
  RunState state;
  bool resumed = false;
  std::vector<SettingChange> changes;  ///< that the run goes on with, by training.resume: changed
  data::Ledger ledger;                 ///< with the bad samples that are known
  /// The checkpoint is of a version that passed over keys which are refused now.
  bool read_otherwise = false;
  bool has_media = true;             ///< a sample that is trained on may have an image, video or volume
  std::optional<TaskBalance> tasks;  ///< once the samples were looked at
  int64_t total_steps = 1;
  engine::Schedule schedule;                ///< from state.schedule_start
  std::optional<RunPlan> plan;              ///< on a GPU
  std::unique_ptr<HostRun> host;            ///< on the CPU
  planner::EvaluationPlan evaluation_plan;  ///< where the run has evaluations
  planner::Choices choices;
  std::unique_ptr<models::VisionLanguageModel> model;
  std::unique_ptr<engine::Training> training;
  std::unique_ptr<models::BaseWeights> base;  ///< null on a virtual card

  /// The ledger, and of several sources or tasks what was drawn of each: its share, samples and epochs of its own.
  nlohmann::ordered_json ledger_json() const;
  /// What the learning rates of the next step are multiplied by.
  double schedule_factor() const;
  /// How steps are cut into micro-batches, for people.
  std::string describe_cut(const Config& config) const;
  /// What of the run goes on and what begins anew, for people; empty where nothing was changed.
  std::string describe_changes(const Config& config) const;

 private:
  void find_newest(const Config& config);
  /// Of a data set that was changed while the run stood still.
  void warn_of_changed(const Config& config, const data::Outlines& outlines) const;
  void make_order(const Config& config, data::Outlines& outlines);
  void describe_packs() const;
  void restore_ledger(const Config& config);
  void settle_steps(const Config& config);
  bool has_other_samples() const;
  bool has_other_course() const;
  /// Of the data set before, where that has changed.
  std::string earlier_ledger() const;
  /// Both where rank 0 has written what it found out, for the others to read.
  data::Outlines look_at_trained(const Config& config) const;
  void look_at_evaluated(const Config& config, data::Outlines& trained);
  /// Settles `job`'s sharding, too, where that is chosen.
  void make_plans(const Config& config, at::Device device, planner::Job& job, const planner::Workload& workload,
                  int64_t making_bytes);
  template <class MakePlan>
  engine::Sharding first_that_fits(const planner::Job& job, const MakePlan& make_plan) const;
  engine::Sharding what_saves_most(engine::Sharding own) const;
  void make_plan(const Config& config, at::Device device, const planner::Job& job, planner::Workload workload,
                 int64_t making_bytes, const std::optional<KeptChoices>& kept);
  std::optional<KeptChoices> kept_choices(at::Device device) const;
  void plan_evaluation(const Config& config);
  void load(const Config& config, at::Device device, const planner::Job& job);

  const RunRanks& ranks_;
  nlohmann::ordered_json before_;  // the checkpoint's fingerprint
  engine::CarriedStates carried_;  // where settings were changed
  bool tasks_go_on_ = true;        // what GradNorm has learnt
  bool has_videos_ = false;        // among the samples that were looked at
};

}  // namespace vlmtrain::train
