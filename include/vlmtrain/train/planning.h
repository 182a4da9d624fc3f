#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <vector>

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/outlines.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/planner/search.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// What masks count in the loss; nothing where the model draws none.
std::optional<engine::MaskLossWeights> get_mask_loss_weights(const Config& config);

/// What a run trains and how, for its rehearsals and for itself; `tasks` are those of the samples, if they are known.
planner::Job make_job(const Config& config, const engine::TaskSettings& tasks = {});

/// What a configuration asks of the planner for this job, which is its own.
planner::PlanRequest build_plan_request(const Config& config, planner::Job job, planner::TargetGpu target,
                                        planner::Workload workload);

/// In which order a run draws its samples. What is larger than a pack becomes a problem of `sample_index`. Throws as
/// data::make_sample_order.
data::SampleOrder make_draw_order(const data::DataSet& dataset, const Config& config, data::SampleIndex& sample_index);

/// The largest global batches that the samples of a data set can make, and steps as `order` draws them; bad samples are
/// left out. Throws UserError (kBadData) if none is good.
planner::Workload make_workload(const data::SampleIndex& sample_index, const data::SampleOrder& order,
                                const Config& config, int64_t world_size = 1);

/// What is planned for, and what its tasks mean.
struct PlanningInputs {
  planner::Workload workload;
  engine::TaskSettings tasks;
};

/// The same, after a look at the data set as data.check_at_start says, which warns of bad samples. Throws UserError
/// (kUsage) where the configuration asks for what the tasks do not allow.
PlanningInputs prepare_planning_inputs(const data::DataSet& records, const models::Processor& processor,
                                       const Config& config, int64_t world_size = 1);

/// What a run does whose plan could not be made, on a GPU or on the CPU: what takes least memory, which is single
/// samples, everything recomputed, one tile a vision pass and small chunks of the loss; but for what the configuration
/// fixes.
planner::StepConfig make_min_memory_config(const Config& config, int64_t vision_blocks, int64_t language_blocks);

/// What `vlmtrain eval` evaluates, and how.
struct PlannedEvaluation {
  std::shared_ptr<const io::Records> records;
  int64_t num_dropped = 0;          ///< bad samples that are not among them
  bool notices_are_logged = false;  ///< all samples were looked at; else an evaluation counts their notices
  evaluation::EvaluationSettings settings;
};

/// Of data.eval, with a checkpoint that is not loaded yet. Looks at the samples as data.check_at_start says; rehearses
/// the largest of them, which says how many fit at once on the device or in the host's memory. A plan that cannot be
/// made is a warning. `base`: of an adapter, as models::find_adapter_base; else not read. Throws UserError (kBadData)
/// as data.on_bad_sample says.
PlannedEvaluation plan_evaluation(const Config& config, const std::filesystem::path& checkpoint,
                                  const models::Processor& processor, at::Device device,
                                  const std::filesystem::path& base = {});

}  // namespace vlmtrain::train
