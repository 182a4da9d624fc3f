#include "vlmtrain/train/config.h"

#include <algorithm>
#include <cmath>

#include "train/equivalent_options.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain::train {

namespace {

/// Not tuned per model: larger micro-batches take more memory and fill the cores of a CPU no
/// better.
constexpr int64_t kMaxAutoMicroBatchSize = 8;

void declare(OptionTable& table, ModelOptions& options) {
  table.describe_section("model", "The checkpoint that training starts from, and what of it stays as it is.");
  table.add("model.path", options.path,
            "Folder of a checkpoint in Hugging Face layout: config.json, *.safetensors, tokenizer.json, …");
  table.add(
      "model.adapter", options.adapter,
      "Folder of a LoRA adapter in PEFT's layout for `model.path`, which training goes on with. It brings its own "
      "rank, alpha and targets; of the section `lora` only `lora.dropout` counts.");
  table.add("model.freeze_vision_tower", options.freeze_vision_tower,
            "The vision tower's weights stay as they are; with LoRA it gets no adapters.");
  table.add("model.freeze_projector", options.freeze_projector,
            "The projector's weights stay as they are; with LoRA it gets no adapters.");
  table.add("model.freeze_language_model", options.freeze_language_model,
            "The language model's weights stay as they are, embeddings and output included; with LoRA it gets no "
            "adapters.");
  table.add("model.freeze_mask_encoder", options.freeze_mask_encoder,
            "Of a model that draws masks: the weights of the encoder of their pictures stay as they are. What decodes "
            "masks is always trained, with LoRA too (docs/masks.md).");
  table.add("model.allow_missing", options.allow_missing,
            "Modules or tensors that the checkpoint may lack, by names of their path (`multi_modal_projector`); they "
            "start at random values, and the log names them. Else what is missing is an error.");
  table.add("model.allow_unexpected", options.allow_unexpected,
            "Modules or tensors that the checkpoint may have beyond what config.json asks for; they are left out, and "
            "the log names them.");
  table.add("model.resize_embeddings", options.resize_embeddings,
            "Embedding and output projection may have another number of rows than `vocab_size` in config.json: new "
            "rows start as the mean of the others, rows too many are left out.");
  table.add_enum("model.quantization", options.quantization, nn::quantization_names(),
                 "With LoRA: how the weights of all Linears but the output projection are held, in the formats of "
                 "bitsandbytes (docs/lora.md). nf4: 4 bits, doubly quantised, as QLoRA. int8: 8 bits.");
}

/// Above the hidden sizes of all models; catches a value that was meant for another key.
constexpr int64_t kMaxLoraRank = 65'536;

/// Limits names and regular expressions, whose cost grows with their length.
Check<std::vector<std::string>> check_entry_lengths() {
  // Above every name of a module.
  constexpr size_t kMaxEntryLength = 1000;
  return {fmt::format("a list of entries of at most {} characters each", kMaxEntryLength),
          [](const std::vector<std::string>& entries) {
            return std::ranges::all_of(entries, [](const auto& entry) { return entry.size() <= kMaxEntryLength; });
          }};
}

void declare(OptionTable& table, LoraOptions& options) {
  table.describe_section("lora",
                         "Low-rank adapters beside weights that all stay as they are (docs/lora.md). Checkpoints then "
                         "hold the adapters only, in PEFT's layout.");
  table.add("lora.rank", options.rank, "Rank of the adapters. 0: no LoRA, the weights themselves are trained.",
            std::optional{between<int64_t>(0, kMaxLoraRank)});
  table.add("lora.alpha", options.alpha, "An adapter's output is multiplied by alpha / rank.",
            std::optional{exceeds(0.0)});
  table.add("lora.dropout", options.dropout, "Share of an adapter's inputs that are set to zero in training.",
            std::optional{between_half_open(0.0, 1.0)});
  table.add("lora.target_modules", options.target_modules,
            "The Linears that get adapters. Each entry is `all-linear` (all but the output projection), the end of a "
            "path by whole names (`q_proj`, `mlp.fc1`), or a regular expression of the whole path "
            "(`.*text_model.*(q\\|v)_proj`).",
            std::optional{check_entry_lengths()});
  table.add("lora.modules_to_save", options.modules_to_save,
            "Modules that are trained themselves and kept with the adapter, by the last names of their path: "
            "`multi_modal_projector`, `embed_tokens`. Their Linears get no adapters.",
            std::optional{check_entry_lengths()});
  table.add("lora.use_rslora", options.use_rslora, "Multiplies by alpha / √rank instead (rank-stabilised LoRA).");
  table.add("lora.use_dora", options.use_dora,
            "Trains the length of each row of the adapted weight as well (weight-decomposed LoRA, DoRA).");
}

const std::vector<std::pair<std::string, BestMetric>> kBestMetrics{
    {"loss", BestMetric::kLoss}, {"exact_match", BestMetric::kExactMatch}, {"dice", BestMetric::kDice}};

void declare(OptionTable& table, EvaluationOptions& options) {
  constexpr int64_t kMaxAnswerTokens = 10'000'000;
  constexpr int64_t kMaxEvalBatchSize = 1'000'000;
  table.add("training.eval_steps", options.steps,
            "An evaluation on `data.eval` after every so many steps, at the end of each epoch and of the run "
            "(docs/evaluation.md). `auto`: at the ends only. 0: none.",
            std::optional{allow_auto(between<int64_t>(0, engine::kMaxSteps))});
  table.add("training.eval_samples", options.samples,
            "Samples of `data.eval` that are evaluated, spread over the file, the same each time. `auto`: all.",
            std::optional{allow_auto(at_least<int64_t>(1))});
  table.add("training.eval_answers", options.answers,
            "An evaluation also has the model answer, hence exact match. `false`: only the loss, which is faster.");
  table.add("training.eval_max_new_tokens", options.max_new_tokens, "Most tokens of an answer in an evaluation.",
            std::optional{between<int64_t>(1, kMaxAnswerTokens)});
  table.add("training.eval_batch_size", options.batch_size,
            "Samples that an evaluation computes at once. `auto`: the most that fit, which is planned.",
            std::optional{allow_auto(between<int64_t>(1, kMaxEvalBatchSize))});
  table.add_enum("training.best_metric", options.best_metric, kBestMetrics,
                 "What the best checkpoint is best by: the lowest loss, the largest share of exact answers, or the "
                 "largest Dice of the masks, of a model that draws some. Between equal values the lower loss decides.");
  table.add("training.early_stopping_patience", options.patience,
            "The run ends, well, after so many evaluations in a row without improvement. 0: never.",
            std::optional{at_least<int64_t>(0)});
}

void declare(OptionTable& table, OutputOptions& options) {
  table.describe_section("output", "Where results go.");
  table.add("output.dir", options.dir, "The run's folder: configuration, metrics, ledger, checkpoints.");
  table.add_enum("output.dtype", options.dtype,
                 {{"auto", OutputDtype::kAuto},
                  {"fp32", OutputDtype::kFp32},
                  {"bf16", OutputDtype::kBf16},
                  {"fp16", OutputDtype::kFp16}},
                 "Type of the weights in checkpoints. auto: each as in the checkpoint that training started from, "
                 "frozen ones to the bit; trained ones are rounded from their fp32 values (docs/models.md).");
  table.add("output.save_steps", options.save_steps,
            "Steps between checkpoints; one is always written at the end. 0: at the end only.",
            std::optional{at_least<int64_t>(0)});
  table.add("output.keep", options.save_total_limit, "Checkpoints kept; older ones are removed.",
            std::optional{at_least<int64_t>(1)});
  table.add("output.keep_best", options.keep_best,
            "Where there are evaluations: writes a checkpoint at the step that is the best so far, and keeps it beside "
            "those of `output.keep`; `checkpoints/best` is a link to it.");
  table.add_enum("output.async_save", options.async_save,
                 {{"auto", AsyncSave::kAuto}, {"true", AsyncSave::kTrue}, {"false", AsyncSave::kFalse}},
                 "Training goes on while a checkpoint is written, from copies of the trained values and the "
                 "optimizer's states in the host's memory. `auto`: where there is room for them (docs/memory.md). "
                 "`false`: the next step waits until it is written.");
  table.add("output.sample_predictions", options.sample_predictions,
            "At each checkpoint the model answers this many samples of `data.eval`, or of `data.train` where there is "
            "none; report.html and TensorBoard show them. 0: none.",
            std::optional{at_least<int64_t>(0)});
  table.add("output.sample_predictions_share", options.sample_predictions_share,
            "Share of the time since the first step that these answers may take at most: where they take longer, fewer "
            "samples are asked at a checkpoint, in turn, and at the run's end at least one. 1: always all.",
            std::optional{between(0.0, 1.0)});
  table.add("output.report", options.report, "Writes report.html while the run goes.");
  table.add("output.tensorboard", options.tensorboard, "Writes event files for TensorBoard.");
  table.add("output.log_samples", options.log_samples, "Writes the ids of each step's samples to samples.jsonl.");
}

void declare(OptionTable& table, DistributedOptions& options) {
  table.describe_section("distributed", "What several ranks share (docs/several-ranks.md).");
  table.add_enum(
      "distributed.sharding", options.sharding,
      {{"none", engine::Sharding::kNone},
       {"optimizer", engine::Sharding::kOptimizer},
       {"full", engine::Sharding::kFull},
       {"hybrid", engine::Sharding::kHybrid},
       {"auto", std::nullopt}},
      "`none`: each rank holds all. `optimizer`: each holds and moves a part of AdamW's moments and fp32 "
      "master weights (ZeRO's first stage). `full`: of all blocks' weights and gradients, too; a block's weights are "
      "brought together just before it runs (ZeRO's third stage, FSDP). `hybrid`: that among the ranks of a machine, "
      "and each machine holds all. `auto`: what fits, and of that what is predicted to be faster. One rank has nothing "
      "to share.");
  constexpr int64_t kDaySeconds = 86'400;
  table.add("distributed.rendezvous_seconds", options.rendezvous_seconds,
            "Seconds within which all ranks have to be there: more where nodes or containers start far apart.",
            std::optional{between<int64_t>(1, kDaySeconds)});
}

}  // namespace

const char* to_string(BestMetric metric) {
  return std::ranges::find(kBestMetrics, metric, &std::pair<std::string, BestMetric>::second)->first.c_str();
}

OptionTable declare(Config& config) {
  OptionTable table;
  declare(table, config.model);
  declare(table, config.lora);
  data::declare(table, config.data);
  engine::declare(table, config.training);
  table.add_enum(
      "training.resume", config.resume,
      {{"auto", ResumePolicy::kAuto}, {"changed", ResumePolicy::kChanged}, {"never", ResumePolicy::kNever}},
      "`auto`: go on from the newest checkpoint in output.dir, if there is one; where other settings would make "
      "another run of it, refuse. `changed`: go on with these other settings, as far as they may change "
      "(docs/resuming.md). `never`: refuse to start where there is a checkpoint.");
  table.add_enum(
      "training.schedule_from", config.schedule_origin,
      {{"start", ScheduleOrigin::kStart}, {"change", ScheduleOrigin::kChange}},
      "Where warm-up and course of the learning rate begin. `start`: at the run's first step, and they span all its "
      "steps. `change`: where `training.resume: changed` last changed learning rates, schedule, steps or data; they "
      "span the steps that were left then (docs/resuming.md).");
  declare(table, config.evaluation);
  planner::declare(table, config.memory);
  declare(table, config.output);
  declare(table, config.distributed);
  table.set_unknown_key_hint(find_equivalent_option);
  return table;
}

int64_t compute_total_steps(const engine::TrainingOptions& training, double units) {
  if (training.max_steps) return *training.max_steps;
  const double steps = training.epochs * units / static_cast<double>(training.global_batch_size);
  if (steps > static_cast<double>(engine::kMaxSteps)) {
    throw usage_error("training.epochs: {} epochs of {:.0f} samples are {:.3g} steps of {}, more than {}; lower it",
                      training.epochs, units, steps, training.global_batch_size, engine::kMaxSteps);
  }
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps)));
}

int64_t compute_total_steps_after_change(int64_t steps, double epochs, const engine::TrainingOptions& training,
                                         double units) {
  const int64_t total_from_start = compute_total_steps(training, units);
  if (training.max_steps) return total_from_start;
  constexpr double kRounding = 1e-9;
  const double remaining_units = (training.epochs - epochs) * units;
  return steps +
         std::max<int64_t>(
             0, std::llround(std::ceil(remaining_units / static_cast<double>(training.global_batch_size) - kRounding)));
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

void check_micro_batch(const Config& config) {
  const auto& size = config.training.micro_batch_size;
  const int64_t global_batch_size = config.training.global_batch_size;
  if (!size || config.data.packing || (*size <= global_batch_size && global_batch_size % *size == 0)) return;
  throw usage_error(
      "training.micro_batch_size: {} does not divide training.global_batch_size {}; the global batch is kept exactly, "
      "so choose a divisor of it, or auto",
      *size, global_batch_size);
}

void check_sharding(const Config& config, int64_t world_size) {
  const auto sharding = config.distributed.sharding.value_or(engine::Sharding::kNone);
  if (sharding == engine::Sharding::kNone) return;
  if (world_size == 1) {
    spdlog::info("distributed.sharding: has no effect with one rank");
    return;
  }
  if (config.training.balance.gradient_conflicts == engine::GradientConflicts::kPcGrad) {
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
        "training.global_batch_size: {} cannot be divided among {} ranks; the global batch is kept exactly, so choose "
        "{}{}, or another number of ranks",
        global_batch_size, world_size, lower > 0 ? fmt::format("{} or ", lower) : "", lower + world_size);
  }
  const auto& micro_batch_size = config.training.micro_batch_size;
  if (micro_batch_size && !config.data.packing && global_batch_size / world_size % *micro_batch_size != 0) {
    throw usage_error(
        "training.micro_batch_size: {} does not divide the {} samples that each of {} ranks has of a global batch of "
        "{}; choose a divisor of it, or auto",
        *micro_batch_size, global_batch_size / world_size, world_size, global_batch_size);
  }
  check_global_batch_tokens(config, world_size);
}

void check_global_batch_tokens(const Config& config, int64_t world_size) {
  if (world_size > 1 && config.training.balance.global_batch_tokens) {
    throw usage_error(
        "training.global_batch_tokens: is {}, but is not supported with several ranks; train with one rank, or set "
        "training.global_batch_size alone",
        *config.training.balance.global_batch_tokens);
  }
}

}  // namespace vlmtrain::train
