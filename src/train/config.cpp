#include "vlmtrain/train/config.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "train/equivalent_options.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::train {

namespace {

/// Not tuned per model. Larger micro-batches take more memory but do not use the cores of a CPU
/// better.
constexpr int64_t kMaxAutoMicroBatchSize = 8;

void declare_options(OptionTable& table, ModelOptions& options) {
  table.set_section_description("model", "Checkpoint that training starts from, and its frozen parts.");
  table.add("model.path", options.path,
            "Folder of a checkpoint in Hugging Face layout: config.json, *.safetensors, tokenizer.json, …");
  table.add("model.adapter", options.adapter,
            "Folder of a LoRA adapter for `model.path` in PEFT's layout, from which training continues. Rank, alpha "
            "and targets are those of the adapter; of the section `lora` only `lora.dropout` applies.");
  table.add("model.freeze_vision_tower", options.freeze_vision_tower,
            "If true, the vision tower is frozen; with LoRA it gets no adapters.");
  table.add("model.freeze_projector", options.freeze_projector,
            "If true, the projector is frozen; with LoRA it gets no adapters.");
  table.add("model.freeze_language_model", options.freeze_language_model,
            "If true, the language model is frozen, embeddings and output projection included; with LoRA it gets no "
            "adapters.");
  table.add("model.freeze_mask_encoder", options.freeze_mask_encoder,
            "If true, the mask encoder of models that predict masks is frozen. The mask decoder is always trained, "
            "with LoRA too (docs/masks.md).");
  table.add("model.allow_missing", options.allow_missing,
            "Modules or tensors that the checkpoint may lack, by names in their path (`multi_modal_projector`). They "
            "start at random values, and the log lists them. Any other missing tensor is an error.");
  table.add("model.allow_unexpected", options.allow_unexpected,
            "Modules or tensors that the checkpoint may have in addition to those that config.json requires. They are "
            "ignored, and the log lists them.");
  table.add("model.resize_embeddings", options.resize_embeddings,
            "If true, embedding and output projection may have a number of rows other than `vocab_size` in "
            "config.json. New rows start as the mean of the others; excess rows are dropped.");
  table.add_enum("model.quantization", options.quantization, nn::get_quantization_names(),
                 "With LoRA: quantization of the weights of all Linears but the output projection, in the formats of "
                 "bitsandbytes (docs/lora.md). nf4: 4 bits with double quantization, as in QLoRA. int8: 8 bits.");
}

/// Larger than the hidden size of any model. Rejects values that were meant for another key.
constexpr int64_t kMaxLoraRank = 65'536;

/// Limits the length of names and regular expressions, because the cost of matching grows with it.
ValueCheck<std::vector<std::string>> make_entry_length_check() {
  // Longer than any path of a module.
  constexpr size_t kMaxEntryLength = 1000;
  return {fmt::format("a list of entries of at most {} characters each", kMaxEntryLength),
          [](const std::vector<std::string>& entries) {
            return std::ranges::all_of(entries, [](const auto& entry) { return entry.size() <= kMaxEntryLength; });
          }};
}

void declare_options(OptionTable& table, LoraOptions& options) {
  table.set_section_description(
      "lora",
      "Low-rank adapters for frozen weights (docs/lora.md). Checkpoints then contain only the "
      "adapters, in PEFT's layout.");
  table.add("lora.rank", options.rank, "Rank of the adapters. 0: no LoRA, the weights themselves are trained.",
            std::optional{between<int64_t>(0, kMaxLoraRank)});
  table.add("lora.alpha", options.alpha, "An adapter's output is multiplied by alpha / rank.",
            std::optional{exceeds(0.0)});
  table.add("lora.dropout", options.dropout, "Probability with which inputs of an adapter are set to zero in training.",
            std::optional{in_half_open_range(0.0, 1.0)});
  table.add(
      "lora.target_modules", options.target_modules,
      "Linears that get adapters. Each entry is `all-linear` (all but the output projection), the end of a path by "
      "whole names (`q_proj`, `mlp.fc1`), or a regular expression for the whole path (`.*text_model.*(q\\|v)_proj`).",
      std::optional{make_entry_length_check()});
  table.add("lora.modules_to_save", options.modules_to_save,
            "Modules that are trained in full and saved with the adapter, by the last names of their path: "
            "`multi_modal_projector`, `embed_tokens`. Their Linears get no adapters.",
            std::optional{make_entry_length_check()});
  table.add("lora.use_rslora", options.use_rslora,
            "If true, an adapter's output is multiplied by alpha / √rank instead (rank-stabilized LoRA).");
  table.add("lora.use_dora", options.use_dora,
            "If true, the norm of each row of the adapted weight is trained as well (weight-decomposed LoRA, DoRA).");
}

/// Returns "anls, cer, …".
std::string join_metric_names() {
  std::vector<std::string> names;
  for (const auto& [name, metric] : evaluation::get_metric_names()) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

nlohmann::ordered_json metrics_to_json(const std::vector<evaluation::Metric>& metrics) {
  auto names = nlohmann::ordered_json::array();
  for (const evaluation::Metric metric : metrics) names.push_back(evaluation::to_string(metric));
  return names;
}

/// Stores the metrics with these names, a list or a single name. Returns an error message without
/// the key for other values, and stores nothing.
std::optional<std::string> parse_metrics(const nlohmann::ordered_json& names,
                                         std::vector<evaluation::Metric>& metrics) {
  const auto& known_names = evaluation::get_metric_names();
  std::vector<evaluation::Metric> parsed_metrics;
  const bool is_list = names.is_array() || names.is_null();
  for (const auto& item : is_list ? names : nlohmann::ordered_json::array({names})) {
    const std::string name = item.is_string() ? item.get<std::string>() : item.dump();
    const auto entry = std::ranges::find(known_names, name, &std::pair<std::string, evaluation::Metric>::first);
    if (entry == known_names.end()) {
      return fmt::format("must be a list of {}, not {}", join_metric_names(), make_excerpt(name));
    }
    if (std::ranges::find(parsed_metrics, entry->second) != parsed_metrics.end())
      return fmt::format("has {} twice; remove one", entry->first);
    parsed_metrics.push_back(entry->second);
  }
  metrics = std::move(parsed_metrics);
  return std::nullopt;
}

void declare_options(OptionTable& table, EvaluationOptions& options) {
  // Far above useful values, to reject typing errors.
  constexpr int64_t kMaxAnswerTokens = 10'000'000;
  constexpr int64_t kMaxEvalBatchSize = 1'000'000;
  table.add("training.eval_steps", options.steps,
            "Number of steps between evaluations on `data.eval`, which also run at the end of each epoch and of the "
            "run (docs/evaluation.md). `auto`: only at these ends. 0: no evaluation.",
            std::optional{allow_auto(between<int64_t>(0, engine::kMaxSteps))});
  table.add("training.eval_samples", options.samples,
            "Number of samples of `data.eval` to evaluate, spread over the file, the same each time. `auto`: all.",
            std::optional{allow_auto(at_least<int64_t>(1))});
  table.add("training.eval_answers", options.generate_answers,
            "If true, an evaluation also generates answers and reports exact match. `false`: only the loss, which is "
            "faster.");
  table.add("training.eval_max_new_tokens", options.max_new_tokens,
            "Maximum number of tokens per answer in an evaluation.",
            std::optional{between<int64_t>(1, kMaxAnswerTokens)});
  table.add("training.eval_batch_size", options.batch_size,
            "Number of samples per evaluation batch. `auto`: the most that fit, chosen by the planner.",
            std::optional{allow_auto(between<int64_t>(1, kMaxEvalBatchSize))});
  table.add_enum(
      "training.best_metric", options.best_metric, get_best_metric_names(),
      "Metric that selects the best checkpoint: the lowest loss, the largest share of exact answers, for "
      "models that predict masks the largest Dice, or a metric of `eval.metrics`: the lowest `cer` or `wer`, "
      "the largest of others. Among equal values the lowest loss decides.");
  table.add("training.early_stopping_patience", options.early_stopping_patience,
            "Number of consecutive evaluations without improvement after which the run ends successfully. 0: never.",
            std::optional{at_least<int64_t>(0)});
  table.set_section_description("eval", "Metrics of the answers in evaluations (docs/evaluation.md).");
  table.add_structured_option(
      "eval.metrics", "list of names", [&options] { return metrics_to_json(options.metrics.metrics); },
      [&options](const nlohmann::ordered_json& names) { return parse_metrics(names, options.metrics.metrics); },
      fmt::format("Metrics that compare the generated answers with the expected ones, in evaluations during training "
                  "and in `vlmtrain eval`: {}.",
                  join_metric_names()));
  table.add("eval.numeric_tolerance", options.metrics.numeric_tolerance,
            "Largest difference of a correct number by the metric `numeric`, relative to the expected number; absolute "
            "if the expected number is 0.",
            std::optional{at_least(0.0)});
}

void declare_options(OptionTable& table, OutputOptions& options) {
  table.set_section_description("output", "Folder, checkpoints and reports of the run.");
  table.add("output.dir", options.dir, "Folder of the run: configuration, metrics, ledger, checkpoints.");
  table.add_enum(
      "output.dtype", options.dtype,
      {{"auto", OutputDtype::kAuto},
       {"fp32", OutputDtype::kFp32},
       {"bf16", OutputDtype::kBf16},
       {"fp16", OutputDtype::kFp16}},
      "Data type of the weights in checkpoints. auto: that of each weight in the checkpoint that training started "
      "from. Frozen weights stay bit-exact; trained ones are rounded from their fp32 values (docs/models.md).");
  table.add("output.save_steps", options.save_steps,
            "Number of steps between checkpoints; one is always written at the end. 0: only at the end.",
            std::optional{at_least<int64_t>(0)});
  table.add("output.save_total_limit", options.save_total_limit,
            "Maximum number of checkpoints to keep; older ones are removed.", std::optional{at_least<int64_t>(1)});
  table.add_alias("output.keep", "output.save_total_limit");
  table.add("output.keep_best", options.keep_best,
            "If true and the run has evaluations, a checkpoint is written at each step that is the best so far. It is "
            "kept in addition to those of `output.save_total_limit`, and `checkpoints/best` links to it.");
  table.add_enum("output.async_save", options.async_save,
                 {{"auto", AsyncSaveMode::kAuto}, {"true", AsyncSaveMode::kAlways}, {"false", AsyncSaveMode::kNever}},
                 "Whether training continues while a checkpoint is written, from copies of the trained values and the "
                 "optimizer's states in host memory. `auto`: if the copies fit (docs/memory.md). `false`: the next "
                 "step waits until the checkpoint is written.");
  table.add("output.sample_predictions", options.num_sample_predictions,
            "Number of samples of `data.eval`, or of `data.train` if it is empty, that the model answers at each "
            "checkpoint. report.html and TensorBoard show the answers. 0: none.",
            std::optional{at_least<int64_t>(0)});
  table.add("output.sample_predictions_share", options.max_prediction_time_share,
            "Maximum share of the time since the first step that these answers may take. If they take longer, fewer "
            "samples are answered per checkpoint, in turn, and at least one at the end of the run. 1: always all.",
            std::optional{between(0.0, 1.0)});
  table.add("output.report", options.write_report, "If true, report.html is written during the run.");
  table.add("output.tensorboard", options.write_tensorboard, "If true, event files for TensorBoard are written.");
  table.add("output.log_samples", options.log_samples,
            "If true, the ids of each step's samples are written to samples.jsonl.");
}

void declare_options(OptionTable& table, DistributedOptions& options) {
  table.set_section_description("distributed", "Sharding and rendezvous of several ranks (docs/several-ranks.md).");
  table.add_enum(
      "distributed.sharding", options.sharding,
      {{"none", engine::ShardingStrategy::kNone},
       {"optimizer", engine::ShardingStrategy::kOptimizer},
       {"full", engine::ShardingStrategy::kFull},
       {"hybrid", engine::ShardingStrategy::kHybrid},
       {"auto", std::nullopt}},
      "Sharding of the training state among the ranks. `none`: each rank holds everything. `optimizer`: each rank "
      "holds and updates a part of AdamW's moments and fp32 master weights (ZeRO stage 1). `full`: also a part of the "
      "weights and gradients of all blocks; a block's weights are gathered just before it runs (ZeRO stage 3, FSDP). "
      "`hybrid`: `full` among the ranks of a node, and each node holds everything. `auto`: of the settings that fit, "
      "the one with the shortest predicted step time. No effect with one rank.");
  constexpr int64_t kSecondsPerDay = 86'400;
  table.add("distributed.rendezvous_seconds", options.rendezvous_timeout_seconds,
            "Seconds within which all ranks must connect; increase it if nodes or containers start far apart.",
            std::optional{between<int64_t>(1, kSecondsPerDay)});
}

}  // namespace

OptionTable declare_options(Config& config) {
  OptionTable table;
  declare_options(table, config.model);
  declare_options(table, config.lora);
  data::declare_options(table, config.data);
  engine::declare_options(table, config.training);
  table.add_enum("training.resume", config.resume_policy,
                 {{"auto", ResumePolicy::kAuto}, {"changed", ResumePolicy::kChanged}, {"never", ResumePolicy::kNever}},
                 "Handling of checkpoints in output.dir. `auto`: resume from the newest one, if any; refuse if the "
                 "settings would make it a different run. `changed`: resume with the changed settings, as far as they "
                 "may change (docs/resuming.md). `never`: refuse to start if a checkpoint exists.");
  table.add_enum("training.schedule_from", config.schedule_origin,
                 {{"start", ScheduleOrigin::kStart}, {"change", ScheduleOrigin::kLastChange}},
                 "Start of warm-up and learning rate schedule. `start`: the run's first step; they span all its steps. "
                 "`change`: the step at which `training.resume: changed` last changed learning rates, schedule, steps "
                 "or data; they span the steps that remained then (docs/resuming.md).");
  declare_options(table, config.evaluation);
  planner::declare_options(table, config.memory);
  declare_options(table, config.output);
  declare_options(table, config.distributed);
  table.set_unknown_key_hint(find_equivalent_option);
  return table;
}

int64_t compute_total_steps(const engine::TrainingOptions& training, double batch_units_per_epoch) {
  if (training.max_steps) return *training.max_steps;
  const double steps = training.epochs * batch_units_per_epoch / static_cast<double>(training.global_batch_size);
  if (steps > static_cast<double>(engine::kMaxSteps)) {
    throw usage_error("training.epochs: {} epochs of {:.0f} samples are {:.3g} steps of {}, more than {}; lower it",
                      training.epochs, batch_units_per_epoch, steps, training.global_batch_size, engine::kMaxSteps);
  }
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps)));
}

int64_t compute_total_steps_after_change(int64_t steps, double epochs, const engine::TrainingOptions& training,
                                         double batch_units_per_epoch) {
  const int64_t total_steps_from_start = compute_total_steps(training, batch_units_per_epoch);
  if (training.max_steps) return total_steps_from_start;
  constexpr double kEpochRoundingError = 1e-9;  // rounding error of `epochs`, which must not add a step
  const double remaining_batch_units = (training.epochs - epochs) * batch_units_per_epoch;
  return steps + std::max<int64_t>(
                     0, std::llround(std::ceil(remaining_batch_units / static_cast<double>(training.global_batch_size) -
                                               kEpochRoundingError)));
}

int64_t compute_max_micro_batch_size(const Config& config, int64_t world_size) {
  const engine::TrainingOptions& training = config.training;
  if (training.micro_batch_size) return *training.micro_batch_size;
  if (config.data.packing) return kMaxAutoMicroBatchSize;
  const int64_t samples_per_rank = training.global_batch_size / world_size;
  int64_t size = std::min(kMaxAutoMicroBatchSize, samples_per_rank);
  while (samples_per_rank % size != 0) --size;
  return size;
}

void check_micro_batch_size(const Config& config) {
  const auto& size = config.training.micro_batch_size;
  const int64_t global_batch_size = config.training.global_batch_size;
  if (!size || config.data.packing || (*size <= global_batch_size && global_batch_size % *size == 0)) return;
  throw usage_error(
      "training.micro_batch_size: {} does not divide training.global_batch_size {}; the global batch size is exact, so "
      "choose a divisor, or auto",
      *size, global_batch_size);
}

void check_sharding(const Config& config, int64_t world_size) {
  const auto sharding = config.distributed.sharding.value_or(engine::ShardingStrategy::kNone);
  if (sharding == engine::ShardingStrategy::kNone) return;
  if (world_size == 1) {
    spdlog::info("distributed.sharding: has no effect with one rank");
    return;
  }
  if (config.training.batch_and_tasks.gradient_conflicts == engine::GradientConflictMethod::kPcGrad) {
    throw usage_error(
        "distributed.sharding={} and training.gradient_conflicts=pcgrad: PCGrad needs whole gradients, but each rank "
        "has only a shard; set distributed.sharding=none",
        engine::to_string(sharding));
  }
  if (engine::shards_blocks(sharding) && config.lora.use_dora) {
    throw usage_error(
        "distributed.sharding={} and lora.use_dora=true: DoRA needs the norms of all rows of the adapted weights, but "
        "each rank has only a shard; set distributed.sharding=optimizer, or lora.use_dora=false",
        engine::to_string(sharding));
  }
}

void check_world_size(const Config& config, int64_t world_size) {
  const int64_t global_batch_size = config.training.global_batch_size;
  check_sharding(config, world_size);
  if (world_size == 1) return;
  if (global_batch_size % world_size != 0) {
    const int64_t lower = global_batch_size / world_size * world_size;
    throw usage_error(
        "training.global_batch_size: {} cannot be divided among {} ranks; the global batch size is exact, so choose "
        "{}{}, or another number of ranks",
        global_batch_size, world_size, lower > 0 ? fmt::format("{} or ", lower) : "", lower + world_size);
  }
  const auto& micro_batch_size = config.training.micro_batch_size;
  if (micro_batch_size && !config.data.packing && global_batch_size / world_size % *micro_batch_size != 0) {
    throw usage_error(
        "training.micro_batch_size: {} does not divide the {} samples per rank ({} ranks, global batch size {}); "
        "choose a divisor, or auto",
        *micro_batch_size, global_batch_size / world_size, world_size, global_batch_size);
  }
  check_global_batch_tokens(config, world_size);
}

void check_global_batch_tokens(const Config& config, int64_t world_size) {
  if (world_size > 1 && config.training.batch_and_tasks.global_batch_tokens) {
    throw usage_error(
        "training.global_batch_tokens: is {}, but is not supported with several ranks; train with one rank, or set "
        "training.global_batch_size alone",
        *config.training.batch_and_tasks.global_batch_tokens);
  }
}

}  // namespace vlmtrain::train
