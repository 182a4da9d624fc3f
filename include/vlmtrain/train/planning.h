#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <vector>

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Returns the weights of the mask losses; nullopt if the model predicts no masks.
std::optional<engine::MaskLossWeights> get_mask_loss_weights(const Config& config);

/// Returns what a run trains and how, for its dry runs and for itself. `tasks` are those of the
/// samples, if they are known.
planner::Job make_job(const Config& config, const engine::TaskSettings& tasks = {});

/// Returns the planner's request for a configuration and its job.
planner::PlanRequest build_plan_request(const Config& config, planner::Job job, planner::TargetGpu target,
                                        planner::Workload workload);

/// Returns the order in which a run draws its samples. Adds samples that are larger than a pack to
/// the problems of `sample_index`. Throws as data::make_sample_order.
data::SampleOrder make_draw_order(const data::DataSet& dataset, const Config& config, data::SampleIndex& sample_index);

/// Returns the largest global batches that the samples of a data set can form, and steps as `order`
/// draws them, without bad samples. Throws UserError (kBadData) if no sample is usable.
planner::Workload make_workload(const data::SampleIndex& sample_index, const data::SampleOrder& order,
                                const Config& config, int64_t world_size = 1);

/// The workload of a plan, and the settings of its tasks.
struct PlanningInputs {
  planner::Workload workload;
  engine::TaskSettings tasks;
};

/// Returns the inputs of a plan after the data check that data.check_at_start asks for, which logs
/// bad samples. Throws UserError (kUsage) if the configuration asks for what the tasks do not
/// allow.
PlanningInputs prepare_planning_inputs(const data::DataSet& records, const models::Processor& processor,
                                       const Config& config, int64_t world_size = 1);

/// Returns the step configuration with the least memory, for a run whose plan failed: single
/// samples, full recomputation, one tile per vision pass, small chunks of the loss; what the
/// configuration fixes stays.
planner::StepConfig make_min_memory_config(const Config& config, int64_t vision_blocks, int64_t language_blocks);

/// The data set of `vlmtrain eval` and the plan of its batches.
struct PlannedEvaluation {
  std::shared_ptr<const io::Records> records;
  int64_t num_dropped = 0;  ///< bad samples that were left out
  bool notices_are_logged =
      false;  ///< all samples were read, and their notices logged; else the evaluation counts them
  evaluation::EvaluationSettings settings;
};

/// Plans the evaluation of data.eval with a checkpoint that is not loaded yet. Reads the samples as
/// data.check_at_start says, and dry-runs the largest ones to find how many fit at once on the
/// device or in the host's memory. A failed plan is a warning. `base` is the adapter's base
/// (models::find_adapter_base). Throws UserError (kBadData) as data.on_bad_sample says.
PlannedEvaluation plan_evaluation(const Config& config, const std::filesystem::path& checkpoint,
                                  const models::Processor& processor, at::Device device,
                                  const std::filesystem::path& base = {});

}  // namespace vlmtrain::train
