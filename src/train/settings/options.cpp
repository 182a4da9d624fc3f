#include "train/settings/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "vlmtrain/base/text_format.h"

namespace vlmtrain::train {

namespace {

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

}  // namespace

void declare_options(OptionTable& table, ModelOptions& options) {
  table.set_section_description("model", "Checkpoint that training starts from, and its frozen parts.");
  table.add(
      keys::model::kPath, options.path,
      {.doc = "Folder of a checkpoint in Hugging Face layout: config.json, *.safetensors, tokenizer.json, … Or "
              "ORG/NAME or ORG/NAME@REVISION on the Hugging Face Hub, if there is no such folder "
              "(docs/how-to/hub.md).",
       .resume = ResumeRule::kNever,
       .hints = {{.names = {"model_name_or_path", "model_name", "model_id", "base_model",
                            "pretrained_model_name_or_path", "model_path"},
                  .text = "model.path: the folder of a checkpoint, or its name on the Hugging Face Hub"},
                 {.names = {"model_revision", "revision"}, .text = "model.path: ORG/NAME@REVISION has the revision"}}});
  table.add(keys::model::kAdapter, options.adapter,
            {.doc = "Folder, or name on the Hub, of a LoRA adapter for `model.path` in PEFT's layout, from which "
                    "training continues. Rank, alpha "
                    "and targets are those of the adapter. Of the section `lora`, only `lora.dropout` and "
                    "`lora.loraplus_lr_ratio` may be set.",
             .resume = ResumeRule::kNever,
             .hints = {{.names = {"adapter_name_or_path", "adapters", "lora_model_dir", "resume_from_adapter"}}}});
  table.add(keys::model::kFreezeVisionTower, options.freeze_vision_tower,
            {.doc = "If true, the vision tower is frozen; with LoRA it gets no adapters.",
             .resume = ResumeRule::kIfRequested,
             .hints = {{.names = {"freeze_vit", "freeze_vision_encoder", "freeze_vision_modules",
                                  "unfreeze_mm_vision_tower", "tune_mm_vision", "tune_vision", "freeze_visual_encoder",
                                  "finetune_vision_layers", "unfreeze_vit_layers"}}}});
  table.add(keys::model::kFreezeProjector, options.freeze_projector,
            {.doc = "If true, the projector is frozen; with LoRA it gets no adapters.",
             .resume = ResumeRule::kIfRequested,
             .hints = {{.names = {"freeze_aligner", "freeze_multi_modal_projector", "freeze_merger", "tune_mm_mlp",
                                  "tune_mm_mlp_adapter", "freeze_mm_mlp_adapter", "freeze_connector"}}}});
  table.add(
      keys::model::kFreezeLanguageModel, options.freeze_language_model,
      {.doc = "If true, the language model is frozen, embeddings and output projection included; with LoRA it gets no "
              "adapters.",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"freeze_llm", "freeze_backbone", "tune_mm_llm", "tune_language", "train_on_text_model",
                            "finetune_language_layers"}}}});
  table.add(keys::model::kFreezePerLayerEmbeddings, options.freeze_per_layer_embeddings,
            {.doc = "If true, the table of per-layer embeddings (Gemma 4 E2B and E4B) is frozen and the rest of the "
                    "language model is trained. It may then be in host memory (`memory.per_layer_embeddings`). With "
                    "LoRA it is frozen anyway.",
             .resume = ResumeRule::kNever});
  table.add(
      keys::model::kFreezeMaskEncoder, options.freeze_mask_encoder,
      {.doc = "If true, the mask encoder of models that predict masks is frozen. The mask decoder is always trained, "
              "with LoRA too (docs/how-to/masks.md).",
       .resume = ResumeRule::kIfRequested});
  table.add(
      keys::model::kAllowMissing, options.allow_missing,
      {.doc = "Modules or tensors that the checkpoint may lack, by names in their path (`multi_modal_projector`). They "
              "start at random values, and the log lists them. Any other missing tensor is an error.",
       .resume = ResumeRule::kNever});
  table.add(
      keys::model::kAllowUnexpected, options.allow_unexpected,
      {.doc =
           "Modules or tensors that the checkpoint may have in addition to those that config.json requires. They are "
           "ignored, and the log lists them.",
       .resume = ResumeRule::kNever});
  table.add(keys::model::kResizeEmbeddings, options.resize_embeddings,
            {.doc = "If true, embedding and output projection may have a number of rows other than `vocab_size` in "
                    "config.json. New rows start as the mean of the others; excess rows are dropped.",
             .resume = ResumeRule::kNever});
  table.add_enum(
      keys::model::kQuantization, options.quantization, nn::get_quantization_names(),
      {.doc = "With LoRA: quantization of the weights of all Linears but the output projection, in the formats of "
              "bitsandbytes (docs/how-to/lora-and-qlora.md). nf4: 4 bits with double quantization, as in QLoRA. int8: "
              "8 bits.",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"load_in_4bit", "bits", "quantization_bit", "quant_bits", "bnb_4bit_quant_type", "use_4bit",
                            "double_quant"},
                  .text = "model.quantization: nf4 (or int8), with lora.rank"},
                 {.names = {"load_in_8bit", "use_8bit"}, .text = "model.quantization: int8, with lora.rank"}}});
}

void declare_options(OptionTable& table, HubOptions& options) {
  table.set_section_description("hub", "Commits of models and data on the Hugging Face Hub.");
  table.add(keys::hub::kCommits, options.commits,
            {.doc = "Commit of each reference to the Hub in other keys. A run adds those that are missing to its "
                    "config.yaml, and uses them when it resumes (docs/how-to/hub.md).",
             .resume = ResumeRule::kNever});
}

void declare_options(OptionTable& table, LoraOptions& options) {
  table.set_section_description(
      "lora",
      "Low-rank adapters for frozen weights (docs/how-to/lora-and-qlora.md). Checkpoints then contain only the "
      "adapters, in PEFT's layout.");
  table.add(keys::lora::kRank, options.rank,
            {.doc = "Rank of the adapters. 0: no LoRA, the weights themselves are trained.",
             .resume = ResumeRule::kNever,
             .hints = {{.names = {"use_llm_lora", "use_backbone_lora"},
                        .text = "lora.rank: above 0 trains adapters in all trained parts"},
                       {.names = {"lora_r", "lora_rank", "r", "lora_dim", "dim"}},
                       {.names = {"lora_enable", "use_lora", "use_peft", "finetuning_type", "train_type", "tuner_type",
                                  "sft_type"},
                        .text = "lora.rank: above 0 trains adapters, 0 trains the full model"}}},
            between<int64_t>(0, kMaxLoraRank));
  table.add(keys::lora::kAlpha, options.alpha,
            {.doc = "An adapter's output is multiplied by alpha / rank.",
             .resume = ResumeRule::kNever,
             .hints = {{.names = {"lora_alpha"}}}},
            exceeds(0.0));
  table.add(keys::lora::kDropout, options.dropout,
            {.doc = "Probability with which inputs of an adapter are set to zero in training.",
             .resume = ResumeRule::kIfRequested,
             .hints = {{.names = {"lora_dropout"}}}},
            in_half_open_range(0.0, 1.0));
  table.add(keys::lora::kTargetModules, options.target_modules,
            {.doc = "Linears that get adapters. Each entry is `all-linear` (all but the output projection), the end of "
                    "a path by whole names (`q_proj`, `mlp.fc1`), or a regular expression for the whole path "
                    "(`.*text_model.*(q\\|v)_proj`).",
             .resume = ResumeRule::kNever,
             .hints = {{.names = {"lora_target", "lora_target_modules", "lora_namespan_exclude", "vision_lora",
                                  "num_lora_modules", "match_all_linear", "exclude_modules"}}}},
            make_entry_length_check());
  table.add(keys::lora::kModulesToSave, options.modules_to_save,
            {.doc = "Modules that are trained in full and saved with the adapter, by the last names of their path: "
                    "`multi_modal_projector`, `embed_tokens`. Their Linears get no adapters.",
             .resume = ResumeRule::kNever,
             .hints = {{.names = {"additional_target", "lora_modules_to_save"}}}},
            make_entry_length_check());
  table.add(keys::lora::kUseRslora, options.use_rslora,
            {.doc = "If true, an adapter's output is multiplied by alpha / √rank instead (rank-stabilized LoRA).",
             .resume = ResumeRule::kNever});
  table.add(
      keys::lora::kUseDora, options.use_dora,
      {.doc = "If true, the norm of each row of the adapted weight is trained as well (weight-decomposed LoRA, DoRA).",
       .resume = ResumeRule::kNever});
  table.add(keys::lora::kLoraplusLrRatio, options.loraplus_lr_ratio,
            {.doc = "Factor of the learning rate of the matrices B (LoRA+). 1: the learning rate of the matrices A.",
             .resume = ResumeRule::kIfRequested,
             .hints = {{.names = {"lorap_lr_ratio"}}}},
            exceeds(0.0));
}

namespace {

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

}  // namespace

void declare_options(OptionTable& table, EvaluationOptions& options) {
  // Far above useful values, to reject typing errors.
  constexpr int64_t kMaxAnswerTokens = 10'000'000;
  constexpr int64_t kMaxEvalBatchSize = 1'000'000;
  table.add(
      keys::training::kEvalSteps, options.steps,
      {.doc = "Number of steps between evaluations on `data.eval`, which also run at the end of each epoch and of the "
              "run (docs/how-to/evaluate.md). `auto`: only at these ends. 0: no evaluation.",
       .resume = ResumeRule::kFree,
       .unit = "steps",
       .hints = {{.names = {"eval_steps", "eval_strategy", "evaluation_strategy", "do_eval", "eval_interval",
                            "load_best_model_at_end", "evals_per_epoch", "val_every_steps", "val_check_interval",
                            "eval_every"},
                  .text = "training.eval_steps, on data.eval; vlmtrain eval --checkpoint evaluates one checkpoint"}}},
      allow_auto(between<int64_t>(0, engine::kMaxSteps)));
  table.add(
      keys::training::kEvalSamples, options.samples,
      {.doc = "Number of samples of `data.eval` to evaluate, spread over the file, the same each time. `auto`: all.",
       .resume = ResumeRule::kFree,
       .unit = "samples"},
      allow_auto(at_least<int64_t>(1)));
  table.add(
      keys::training::kEvalAnswers, options.generate_answers,
      {.doc = "If true, an evaluation also generates answers and reports exact match. `false`: only the loss, which is "
              "faster.",
       .resume = ResumeRule::kFree});
  table.add(
      keys::training::kEvalMaxNewTokens, options.max_new_tokens,
      {.doc = "Maximum number of tokens per answer in an evaluation.", .resume = ResumeRule::kFree, .unit = "tokens"},
      between<int64_t>(1, kMaxAnswerTokens));
  table.add(keys::training::kEvalBatchSize, options.batch_size,
            {.doc = "Number of samples per evaluation batch. `auto`: the most that fit, chosen by the planner.",
             .resume = ResumeRule::kFree,
             .unit = "samples",
             .hints = {{.names = {"per_device_eval_batch_size", "eval_batch_size"},
                        .text = "training.eval_batch_size: auto chooses the most samples that fit"}}},
            allow_auto(between<int64_t>(1, kMaxEvalBatchSize)));
  table.add_enum(
      keys::training::kBestMetric, options.best_metric, get_best_metric_names(),
      {.doc = "Metric that selects the best checkpoint: the lowest loss, the largest share of exact answers, or for "
              "models that predict masks the largest Dice. Also a metric of `eval.metrics`: the lowest `cer` or `wer`, "
              "the largest of others. Among equal values the lowest loss decides.",
       .resume = ResumeRule::kFree});
  table.add(
      keys::training::kEarlyStoppingPatience, options.early_stopping_patience,
      {.doc = "Number of consecutive evaluations without improvement after which the run ends successfully. 0: never.",
       .resume = ResumeRule::kFree,
       .unit = "evaluations"},
      at_least<int64_t>(0));
  table.set_section_description("eval", "Metrics of the answers in evaluations (docs/how-to/evaluate.md).");
  table.add_structured_option(
      keys::eval::kMetrics, "list of names", [&options] { return metrics_to_json(options.metrics.metrics); },
      [&options](const nlohmann::ordered_json& names) { return parse_metrics(names, options.metrics.metrics); },
      {.doc = fmt::format(
           "Metrics that compare the generated answers with the expected ones, in evaluations during training "
           "and in `vlmtrain eval`: {}.",
           join_metric_names()),
       .resume = ResumeRule::kFree});
  table.add(
      keys::eval::kNumericTolerance, options.metrics.numeric_tolerance,
      {.doc =
           "Largest difference of a correct number by the metric `numeric`, relative to the expected number; absolute "
           "if the expected number is 0.",
       .resume = ResumeRule::kFree},
      at_least(0.0));
}

void declare_options(OptionTable& table, OutputOptions& options) {
  table.set_section_description("output", "Folder, checkpoints and reports of the run.");
  table.add(keys::output::kDir, options.dir,
            {.doc = "Folder of the run: configuration, metrics, ledger, checkpoints.",
             .resume = ResumeRule::kFree,
             .hints = {{.names = {"output_dir", "logging_dir", "run_name", "save_path", "checkpoint_dir"}}}});
  table.add_enum(
      keys::output::kDtype, options.dtype,
      {{"auto", OutputDtype::kAuto},
       {"fp32", OutputDtype::kFp32},
       {"bf16", OutputDtype::kBf16},
       {"fp16", OutputDtype::kFp16}},
      {.doc =
           "Data type of the weights in checkpoints. auto: that of each weight in the checkpoint that training started "
           "from. Frozen weights stay bit-exact; trained ones are rounded from their fp32 values "
           "(docs/reference/models.md).",
       .resume = ResumeRule::kFree});
  table.add(keys::output::kSaveSteps, options.save_steps,
            {.doc = "Number of steps between checkpoints; one is always written at the end. 0: only at the end.",
             .resume = ResumeRule::kFree,
             .unit = "steps",
             .hints = {{.names = {"save_strategy", "save_interval", "save_every", "saves_per_epoch", "ckpt_every_steps",
                                  "save_freq"}}}},
            at_least<int64_t>(0));
  table.add(keys::output::kSaveTotalLimit, options.save_total_limit,
            {.doc = "Maximum number of checkpoints to keep; older ones are removed.",
             .resume = ResumeRule::kFree,
             .unit = "checkpoints",
             .aliases = {"output.keep"},
             .hints = {{.names = {"save_total_limit"}}}},
            at_least<int64_t>(1));
  table.add(
      keys::output::kKeepBest, options.keep_best,
      {.doc =
           "If true and the run has evaluations, a checkpoint is written at each step that is the best so far. It is "
           "kept in addition to those of `output.save_total_limit`, and `checkpoints/best` links to it.",
       .resume = ResumeRule::kFree});
  table.add_enum(keys::output::kAsyncSave, options.async_save,
                 {{"auto", AsyncSaveMode::kAuto}, {"true", AsyncSaveMode::kAlways}, {"false", AsyncSaveMode::kNever}},
                 {.doc = "Whether training continues while a checkpoint is written from copies in host memory. `auto`: "
                         "if the copies fit (docs/explanation/memory.md).",
                  .resume = ResumeRule::kFree});
  table.add(
      keys::output::kSamplePredictions, options.num_sample_predictions,
      {.doc = "Number of samples of `data.eval`, or of `data.train` if it is empty, that the model answers at each "
              "checkpoint. report.html and TensorBoard show the answers. 0: none.",
       .resume = ResumeRule::kFree,
       .unit = "samples"},
      at_least<int64_t>(0));
  table.add(
      keys::output::kSamplePredictionsShare, options.max_prediction_time_share,
      {.doc = "Maximum share of the time since the first step that these answers may take. If they take longer, fewer "
              "samples are answered per checkpoint, in turn, and at least one at the end of the run. 1: always all.",
       .resume = ResumeRule::kFree},
      between(0.0, 1.0));
  table.add(keys::output::kReport, options.write_report,
            {.doc = "If true, report.html is written during the run.", .resume = ResumeRule::kFree});
  table.add(keys::output::kTensorboard, options.write_tensorboard,
            {.doc = "If true, event files for TensorBoard are written.",
             .resume = ResumeRule::kFree,
             .hints = {{.names = {"report_to", "log_with", "wandb_project", "wandb_entity", "wandb_name",
                                  "wandb_run_name", "wandb_watch", "wandb_log_model", "plot_loss"},
                        .text = "output.tensorboard and output.report; metrics.jsonl has every step"}}});
  table.add(
      keys::output::kLogSamples, options.log_samples,
      {.doc = "If true, the ids of each step's samples are written to samples.jsonl.", .resume = ResumeRule::kFree});
}

void declare_options(OptionTable& table, DistributedOptions& options) {
  table.set_section_description("distributed",
                                "Sharding and rendezvous of several ranks (docs/how-to/several-gpus.md).");
  table.add_enum(
      keys::distributed::kSharding, options.sharding,
      {{"none", engine::ShardingStrategy::kNone},
       {"optimizer", engine::ShardingStrategy::kOptimizer},
       {"full", engine::ShardingStrategy::kFull},
       {"hybrid", engine::ShardingStrategy::kHybrid},
       {"auto", std::nullopt}},
      {.doc = "Sharding of the training state among the ranks (docs/explanation/sharding.md). `none`: replicated. "
              "`optimizer`: optimizer state, as ZeRO stage 1. `full`: also weights and gradients, as FSDP. `hybrid`: "
              "`full` within a node. `auto`: the fastest that fits. No effect with one rank.",
       .resume = ResumeRule::kFree,
       .hints = {{.names = {"deepspeed", "fsdp", "fsdp_config", "zero_stage", "ddp_find_unused_parameters",
                            "nproc_per_node", "num_gpus", "world_size", "devices", "accelerator", "tp_size", "cp_size",
                            "dp_size", "tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size"},
                  .text =
                      "ranks train data-parallel (--nproc-per-node, torchrun, srun; docs/how-to/several-gpus.md), and "
                      "distributed.sharding shards optimizer states (optimizer) or also weights (full, hybrid)"}}});
  constexpr int64_t kSecondsPerDay = 86'400;
  table.add(keys::distributed::kRendezvousSeconds, options.rendezvous_timeout_seconds,
            {.doc = "Seconds within which all ranks must connect; increase it if nodes or containers start far apart.",
             .resume = ResumeRule::kFree,
             .unit = "seconds",
             .hints = {{.names = {"ddp_timeout", "timeout_minutes"},
                        .text = "distributed.rendezvous_seconds: the time within which all ranks connect"}}},
            between<int64_t>(1, kSecondsPerDay));
}

}  // namespace vlmtrain::train
