#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::data {
class DataSet;
struct SampleIndex;
class SampleOrder;
}  // namespace vlmtrain::data

namespace vlmtrain::models {
class Processor;
}

namespace vlmtrain::train {

/// Returns the weights of the mask losses; nullopt if the model predicts no masks.
std::optional<engine::TextAndMaskLossWeights> get_mask_loss_weights(const Config& config);

/// Returns the job of a run: its model, trained parts, optimizer and objective. The run and its dry
/// runs build their models from it. `tasks`: settings for the tasks of the samples; empty if they
/// are unknown. Throws UserError (kUsage) for keys that contradict each other.
planner::Job make_training_job(const Config& config, const engine::TaskSettings& tasks = {});

/// Returns the planner's request for the job of a configuration on `target`. Does not fill in sample
/// limits.
planner::PlanRequest make_plan_request(const Config& config, planner::Job job, planner::PlanTarget target,
                                       planner::Workload workload);

/// Returns the order in which a run draws its samples. With packing, marks samples that are larger
/// than a pack as unusable in `sample_index`. Throws the errors of data::make_sample_order().
data::SampleOrder make_run_sample_order(const data::DataSet& dataset, const Config& config,
                                        data::SampleIndex& sample_index);

/// Returns the samples to plan for: the largest global batches that the usable samples can form,
/// and steps that `order` draws, for a rank of `world_size`. Throws UserError (kBadData) if no
/// sample is usable.
planner::Workload make_workload(const data::SampleIndex& sample_index, const data::SampleOrder& order,
                                const Config& config, int64_t world_size = 1);

/// The workload of a plan, and the settings of its tasks.
struct PlanningInputs {
  planner::Workload workload;
  engine::TaskSettings tasks;
};

/// Checks the data as data.check_at_start says, logs bad samples, and returns the inputs of a plan.
/// Throws UserError: kBadData if no sample is usable, kUsage if the task settings do not fit the
/// tasks of the samples.
PlanningInputs make_planning_inputs(const data::DataSet& records, const models::Processor& processor,
                                    const Config& config, int64_t world_size = 1);

/// Returns the step configuration of minimum memory, for a run whose planning failed: micro-batches
/// of one sample, all blocks recomputed, one tile per vision pass, small loss chunks. Values that
/// the configuration sets take precedence. `num_vision_blocks` and `num_language_blocks`: blocks of
/// the model.
planner::StepConfig make_min_memory_step_config(const Config& config, int64_t num_vision_blocks,
                                                int64_t num_language_blocks);

/// Returns the samples and batch sizes of evaluations during a run (PlanRequest::evaluation), for GPUs;
/// nullopt if the run has none. Checks the samples of data.eval as data.check_at_start says. Throws
/// UserError (kBadData) if none is usable. REQUIRES: check_evaluation_options() accepts `config`.
std::optional<planner::EvaluationRequest> make_run_evaluation_request(const Config& config,
                                                                      const models::Processor& processor);

/// Returns the same for evaluations of samples like `largest_sample`.
std::optional<planner::EvaluationRequest> make_run_evaluation_request(const Config& config,
                                                                      const data::SampleShape& largest_sample);

/// The data set of `vlmtrain eval` and the plan of its batches.
struct PlannedEvaluation {
  std::shared_ptr<const io::Records> records;
  int64_t num_bad_samples = 0;  ///< bad samples, which are not among `records`
  /// Whether all samples were checked and their notices logged. Otherwise the notices of
  /// evaluation::EvaluationResult are new.
  bool has_logged_notices = false;
  evaluation::EvaluationSettings settings;  ///< the planned ones; callbacks are not set
};

/// Plans the evaluation of data.eval with a checkpoint that is not loaded yet. Checks the samples
/// as data.check_at_start says, and dry-runs the largest ones to find the batch size that fits into
/// the memory of the device or host. Warns if planning fails, and returns default batches.
/// `checkpoint`: folder of a model or adapter. `base`: base checkpoint of an adapter; empty for the
/// one that the adapter names. Throws UserError (kBadData) as data.on_bad_sample says.
PlannedEvaluation plan_evaluation(const Config& config, const std::filesystem::path& checkpoint,
                                  const models::Processor& processor, at::Device device,
                                  const std::filesystem::path& base = {});

/// The step configuration that a run chose at its first start. Checkpoints store it, and resumed
/// runs reuse it even if more or less memory is free, because other micro-batches would sum
/// gradients in another order.
struct SavedPlan {
  planner::StepConfig step_config;
  int64_t limit_bytes = 0;  ///< memory limit that the run was planned for

  /// Returns the JSON object for a checkpoint. `limit_key`: name of the field of limit_bytes, which
  /// differs between CPU and GPU.
  nlohmann::ordered_json to_json(const char* limit_key) const;
  /// Parses the output of to_json(). Throws UserError (kBadData), with `source`.
  static SavedPlan from_json(const nlohmann::ordered_json& json, const char* limit_key, const std::string& source);
};

/// Returns `requested`, the constraints that the configuration sets, and the saved values of those
/// that it leaves open.
planner::StepConstraints constrain_to_saved_config(const planner::StepConstraints& requested,
                                                   const planner::StepConfig& saved);

/// The result of make_plan_with_split_fallback().
struct PlanWithSplitFallback {
  planner::Plan plan;
  /// The configured micro-batch size, if it does not fit with the largest samples and `plan` is for
  /// micro-batches of one sample. Steps that do not fit are then split. Otherwise nullopt.
  std::optional<int64_t> oversized_micro_batch_size;
};

/// Returns the plan that `make_plan` returns for `request`. If `allow_splits`
/// (memory.allow_splits), and the configured micro-batch does not fit with the largest samples,
/// returns a plan for micro-batches of one sample instead. The plan may not fit in either case.
/// Rethrows the errors of `make_plan`.
PlanWithSplitFallback make_plan_with_split_fallback(
    planner::PlanRequest request, bool allow_splits,
    const std::function<planner::Plan(const planner::PlanRequest&)>& make_plan);

}  // namespace vlmtrain::train
