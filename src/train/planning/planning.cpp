#include "vlmtrain/train/planning.h"

#include <fmt/format.h>

#include <utility>

#include "train/balance.h"
#include "train/data_check/data_check.h"
#include "train/data_check/run_records.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/custom_kernels.h"

namespace vlmtrain::train {

namespace {

/// Returns the mean number of samples per pack in the first epoch.
double compute_mean_samples_per_pack(const data::SampleOrder& order) {
  double samples = 0;
  double packs = 0;
  for (int64_t source = 0; source < order.num_sources(); ++source) {
    const auto epoch = order.get_epoch_order(source, 0);
    samples += static_cast<double>(epoch->samples.size());
    packs += static_cast<double>(epoch->num_units());
  }
  return samples / packs;
}

/// Gives all samples label weights, since one sample with them gives all labels of its micro-batch a
/// weight.
void set_label_weights(std::vector<data::ShapesByRank>& steps) {
  for (auto& shapes_by_rank : steps) {
    for (auto& shapes : shapes_by_rank) {
      for (data::SampleShape& shape : shapes) shape.has_label_weights = true;
    }
  }
}

}  // namespace

std::optional<engine::TextAndMaskLossWeights> get_mask_loss_weights(const Config& config) {
  if (!models::predicts_masks(config.model.folder())) return std::nullopt;
  return config.training.mask_loss_weights;
}

planner::Job make_training_job(const Config& config, const engine::TaskSettings& tasks) {
  return {.model = config.model.folder(),
          .precision = config.training.precision,
          .frozen_parts = get_frozen_parts(config.model),
          .lora = make_lora_settings(config),
          .quantization = resolve_quantization(config),
          .disabled_kernels = find_disabled_kernels(config.training),
          .optimizer = make_optimizer_settings(config),
          .objective = {.tasks = tasks, .masks = get_mask_loss_weights(config)},
          .sharding = config.distributed.sharding.value_or(engine::ShardingStrategy::kNone),
          .per_layer_tables = config.memory.per_layer_embeddings.value_or(nn::MemoryPlacement::kDevice),
          .offload = config.memory.offload.value_or(engine::Offload::kNone),
          .offload_activations = config.memory.offload_activations.value_or(false)};
}

planner::PlanRequest make_plan_request(const Config& config, planner::Job job, planner::PlanTarget target,
                                       planner::Workload workload) {
  return {.model = config.model.folder(),
          .job = std::move(job),
          .auto_sharding = !config.distributed.sharding && config.training.batch_and_tasks.gradient_conflicts !=
                                                               engine::GradientConflictMethod::kPcGrad,
          .auto_per_layer_tables = !config.memory.per_layer_embeddings,
          .auto_offload = !config.memory.offload,
          .auto_offload_activations = !config.memory.offload_activations,
          .target = std::move(target),
          .mode = config.memory.mode,
          .limit_gigabytes = config.memory.limit_gb,
          .workload = std::move(workload),
          .constraints = {.micro_batch_size = config.training.micro_batch_size,
                          .recompute = config.memory.recompute,
                          .vision_tiles_per_pass = config.memory.vision_tiles_per_pass,
                          .loss_chunk_rows = config.memory.loss_chunk_rows,
                          .expandable_segments = config.memory.expandable_segments}};
}

data::SampleOrder make_run_sample_order(const data::DataSet& dataset, const Config& config,
                                        data::SampleIndex& sample_index) {
  auto settings = data::make_order_settings(config.data, static_cast<uint64_t>(config.training.seed));
  settings.block_starts = dataset.block_starts();
  if (settings.pack_limits) data::reject_oversized_samples(*settings.pack_limits, sample_index);
  return data::make_sample_order(dataset, config.data.task_shares, sample_index, std::move(settings));
}

planner::Workload make_workload(const data::SampleIndex& sample_index, const data::SampleOrder& order,
                                const Config& config, int64_t world_size) {
  if (sample_index.shapes.num_known_shapes() == 0) {
    throw data_error("{}: none of its {} samples can be used; the first: {}", config.data.train.name(),
                     sample_index.shapes.size(), sample_index.problems.begin()->second.message);
  }
  planner::Workload workload{
      .worst_batches = {}, .global_batch_size = config.training.global_batch_size, .world_size = world_size};
  if (order.settings().pack_limits) {
    workload.packing = planner::PackingParams{.mean_samples_per_pack = compute_mean_samples_per_pack(order),
                                              .fixed_micro_batch_size = config.training.micro_batch_size.value_or(0)};
  }
  workload.check_divisible();
  const int64_t samples = workload.samples_per_rank();
  workload.sampled_steps = data::simulate_steps(order, sample_index.shapes, workload.global_batch_size,
                                                planner::compute_num_sampled_steps(samples), workload.world_size);
  workload.worst_batches = planner::find_worst_batches(sample_index, samples);
  if (sample_index.shapes.has_label_weights()) set_label_weights(workload.sampled_steps);
  return workload;
}

PlanningInputs make_planning_inputs(const data::DataSet& records, const models::Processor& processor,
                                    const Config& config, int64_t world_size) {
  data::SampleIndex sample_index = check_data(records, processor, config, config.data.train.name(), /*cache=*/{});
  log_training_data_remarks(config, records, sample_index);
  const data::SampleOrder order = make_run_sample_order(records, config, sample_index);
  if (!sample_index.problems.empty()) {
    const bool stops_run = config.data.on_bad_sample == data::BadSamplePolicy::kFail;
    spdlog::warn("{}: {} of {} cannot be used and {} not planned for{}; the first: {}", config.data.train.name(),
                 sample_index.problems.size(), pluralize(records.size(), "sample"),
                 sample_index.problems.size() == 1 ? "is" : "are",
                 stops_run ? fmt::format(", and training stops at them ({}=fail)", keys::data::kOnBadSample) : "",
                 sample_index.problems.begin()->second.message);
  }
  return {.workload = make_workload(sample_index, order, config, world_size),
          .tasks = make_task_settings(config.training.batch_and_tasks, data::TaskTable(sample_index, records))};
}

planner::StepConfig make_min_memory_step_config(const Config& config, int64_t num_vision_blocks,
                                                int64_t num_language_blocks) {
  // Rows of logits per loss chunk. Their memory is small compared with the activations of a layer;
  // smaller chunks would be slower.
  constexpr int64_t kMinMemoryLossChunkRows = 128;
  const models::RecomputeBlockCounts all{.vision = num_vision_blocks, .language = num_language_blocks};
  const planner::RecomputeOption& recompute = config.memory.recompute;
  return {.micro_batch_size = config.training.micro_batch_size.value_or(1),
          .recompute = recompute.is_auto() ? all : recompute.resolve_block_counts(all),
          .vision_tiles_per_pass = config.memory.vision_tiles_per_pass.value_or(1),
          .loss_chunk_rows = config.memory.loss_chunk_rows.value_or(kMinMemoryLossChunkRows),
          .expandable_segments = config.memory.expandable_segments,
          .copies_ahead = false};
}

namespace {

/// Returns the job of an evaluation without training. `checkpoint`: folder of a model or an
/// adapter.
planner::Job make_evaluation_job(const Config& config, const std::filesystem::path& checkpoint,
                                 const std::filesystem::path& base) {
  planner::Job job;
  job.model = checkpoint;
  job.precision = config.training.precision;
  job.disabled_kernels = find_disabled_kernels(config.training);
  if (models::is_adapter(checkpoint)) {
    job.model = models::find_adapter_base(checkpoint, base);
    job.lora = models::read_adapter_settings(checkpoint, job.model);
  }
  return job;
}

std::vector<int64_t> find_eos_token_ids(const std::filesystem::path& checkpoint, const models::Processor& processor,
                                        const std::filesystem::path& base) {
  const auto folders = models::is_adapter(checkpoint)
                           ? models::resolve_base_and_adapter(checkpoint, base)
                           : models::BaseAndAdapterFolders{.base = checkpoint, .adapter = {}};
  return models::load_eos_token_ids(folders.base, processor, folders.adapter);
}

/// Returns the host of an evaluation without training.
planner::TargetHost make_evaluation_host(const Config& config, const planner::EvaluationRequest& request,
                                         int64_t decode_bytes) {
  const int64_t process_bytes =
      memory::get_resident_bytes() + io::get_row_group_memory_stats().compute_max_additional_bytes();
  return {.available_memory = memory::get_available_host_memory(),
          .requirements = {.process_bytes = process_bytes,
                           .largest_sample_bytes = compute_largest_sample_bytes(request.worst_batches),
                           .decode_bytes = decode_bytes,
                           .samples_per_step = request.batch_size.value_or(kMaxCpuEvalBatchSize),
                           .num_loader_threads = config.data.num_workers}};
}

}  // namespace

std::optional<planner::EvaluationRequest> make_run_evaluation_request(const Config& config,
                                                                      const models::Processor& processor) {
  if (!config.evaluation.is_enabled()) return std::nullopt;
  return make_evaluation_request(config, EvaluationSet(config, processor, /*cache=*/{}), /*job=*/{});
}

std::optional<planner::EvaluationRequest> make_run_evaluation_request(const Config& config,
                                                                      const data::SampleShape& largest_sample) {
  const EvaluationOptions& options = config.evaluation;
  if (!options.is_enabled()) return std::nullopt;
  const auto batch_size = static_cast<size_t>(options.batch_size.value_or(kMaxGpuEvalBatchSize));
  planner::EvaluationRequest request;
  request.worst_batches.push_back({.shapes = std::vector(batch_size, largest_sample), .first_sample_id = {}});
  request.max_new_tokens = options.generate_answers ? options.max_new_tokens : 0;
  request.batch_size = options.batch_size;
  request.max_batch_size = kMaxGpuEvalBatchSize;
  return request;
}

PlannedEvaluation plan_evaluation(const Config& config, const std::filesystem::path& checkpoint,
                                  const models::Processor& processor, at::Device device,
                                  const std::filesystem::path& base) {
  load_custom_kernels(config.training, device);
  const EvaluationSet evaluation_set(config, processor, /*cache=*/{});
  PlannedEvaluation result{.records = evaluation_set.records(),
                           .num_bad_samples = evaluation_set.num_bad_samples(),
                           .has_logged_notices = evaluation_set.sample_index().is_complete,
                           .settings = {.num_workers = config.data.num_workers,
                                        .generate_answers = config.evaluation.generate_answers,
                                        .max_new_tokens = config.evaluation.max_new_tokens,
                                        .metrics = config.evaluation.metrics,
                                        .eos_token_ids = find_eos_token_ids(checkpoint, processor, base),
                                        .on_bad_sample = config.data.on_bad_sample}};
  result.settings.batch_size = config.evaluation.batch_size.value_or(result.settings.batch_size);
  try {
    auto request = make_evaluation_request(config, evaluation_set, make_evaluation_job(config, checkpoint, base));
    if (device.is_cpu()) {
      request.max_batch_size = kMaxCpuEvalBatchSize;
      request.target = make_evaluation_host(config, request, evaluation_set.decode_bytes());
    } else {
      memory::set_expandable_segments(config.memory.expandable_segments);
      request.target = planner::make_target_gpu(memory::get_device_properties(device));
    }
    request.limit_bytes = planner::compute_memory_limit(request.target, config.memory.mode, config.memory.limit_gb,
                                                        /*world_size=*/1)
                              .limit_bytes;
    request.target_reserved_bytes = request.limit_bytes;
    const planner::EvaluationPlan plan = planner::plan_evaluation(request);
    result.settings.batch_size = plan.batch_size;
    result.settings.layout = plan.layout;
    spdlog::info("evaluation: batches of {}, planned in {:.1f} s", plan.batch_size, plan.seconds);
    if (!plan.fits) {
      spdlog::warn(
          "evaluation: the largest samples may not fit into memory in batches of {}; batches that do not fit are "
          "split, and single samples that do not fit are dropped",
          plan.batch_size);
    }
  } catch (const std::exception& error) {
    spdlog::warn("the evaluation is not planned ({}); it uses batches of {}", get_first_line(error.what()),
                 result.settings.batch_size);
  }
  return result;
}

namespace {

/// Name of the field, and the name in checkpoints of older versions.
constexpr io::FieldAlias kSelectiveBlocksField{"selective_language_blocks", "language_attention_kept"};

}  // namespace

nlohmann::ordered_json SavedPlan::to_json(const char* limit_key) const {
  nlohmann::ordered_json json{{"micro_batch_size", step_config.micro_batch_size},
                              {"recomputed_vision_blocks", step_config.recompute.vision},
                              {"recomputed_language_blocks", step_config.recompute.language},
                              {"vision_tiles_per_pass", step_config.vision_tiles_per_pass},
                              {"loss_chunk_rows", step_config.loss_chunk_rows},
                              {limit_key, limit_bytes}};
  if (step_config.recompute.language_selective > 0) {
    json[kSelectiveBlocksField.name] = step_config.recompute.language_selective;
    io::add_field_aliases(json, {kSelectiveBlocksField});
  }
  if (!step_config.copies_ahead) json["copies_ahead"] = false;
  if (step_config.memory_cost_table) json["costs"] = step_config.memory_cost_table->to_json();
  return json;
}

SavedPlan SavedPlan::from_json(const nlohmann::ordered_json& json, const char* limit_key, const std::string& source) {
  const auto get_number = [&](const char* key) { return io::get<int64_t>(json, key, source); };
  SavedPlan plan{.step_config = {.micro_batch_size = get_number("micro_batch_size"),
                                 .recompute = {.vision = get_number("recomputed_vision_blocks"),
                                               .language = get_number("recomputed_language_blocks")},
                                 .vision_tiles_per_pass = get_number("vision_tiles_per_pass"),
                                 .loss_chunk_rows = get_number("loss_chunk_rows")},
                 .limit_bytes = get_number(limit_key)};
  if (const char* const name = io::find_field_name(json, kSelectiveBlocksField); json.contains(name)) {
    plan.step_config.recompute.language_selective = get_number(name);
  }
  if (json.contains("copies_ahead")) plan.step_config.copies_ahead = io::get<bool>(json, "copies_ahead", source);
  if (const auto costs = json.find("costs"); costs != json.end()) {
    plan.step_config.memory_cost_table = planner::MemoryCostTable::from_json(*costs, source);
  }
  return plan;
}

planner::StepConstraints constrain_to_saved_config(const planner::StepConstraints& requested,
                                                   const planner::StepConfig& saved) {
  planner::StepConstraints fixed_constraints = requested;
  if (!fixed_constraints.micro_batch_size) fixed_constraints.micro_batch_size = saved.micro_batch_size;
  if (fixed_constraints.recompute.is_auto())
    fixed_constraints.recompute = planner::RecomputeOption::from_block_counts(saved.recompute);
  if (!fixed_constraints.vision_tiles_per_pass) fixed_constraints.vision_tiles_per_pass = saved.vision_tiles_per_pass;
  if (!fixed_constraints.loss_chunk_rows) fixed_constraints.loss_chunk_rows = saved.loss_chunk_rows;
  return fixed_constraints;
}

PlanWithSplitFallback make_plan_with_split_fallback(
    planner::PlanRequest request, bool allow_splits,
    const std::function<planner::Plan(const planner::PlanRequest&)>& make_plan) {
  const bool may_split = allow_splits && request.constraints.micro_batch_size;
  const bool with_suggestions = std::exchange(request.with_suggestions, request.with_suggestions && !may_split);
  planner::Plan plan = make_plan(request);
  if (plan.fits || !may_split) return {std::move(plan), std::nullopt};
  const int64_t requested_micro_batch_size = *std::exchange(request.constraints.micro_batch_size, 1);
  request.with_suggestions = with_suggestions;
  plan = make_plan(request);
  const bool fits = plan.fits;
  plan.constraints.micro_batch_size.reset();  // the size of single samples is not the user's
  return {std::move(plan), fits ? std::optional{requested_micro_batch_size} : std::nullopt};
}

}  // namespace vlmtrain::train
