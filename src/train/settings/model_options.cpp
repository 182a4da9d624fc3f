#include <fmt/format.h>

#include <algorithm>

#include "train/settings/options.h"

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
  table.add(keys::model::kPath, options.path,
            {.doc = "Folder of a checkpoint in Hugging Face layout: config.json, *.safetensors, tokenizer.json, …",
             .resume = ResumeRule::kNever,
             .hints = {{.names = {"model_name_or_path", "model_name", "model_id", "base_model",
                                  "pretrained_model_name_or_path", "model_path"},
                        .text = "model.path: the folder of a checkpoint"}}});
  table.add(
      keys::model::kAdapter, options.adapter,
      {.doc = "Folder of a LoRA adapter for `model.path` in PEFT's layout, from which training continues. Rank, alpha "
              "and targets are those of the adapter; of the section `lora` only `lora.dropout` applies.",
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
  table.add(
      keys::model::kFreezeMaskEncoder, options.freeze_mask_encoder,
      {.doc = "If true, the mask encoder of models that predict masks is frozen. The mask decoder is always trained, "
              "with LoRA too (docs/masks.md).",
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
              "bitsandbytes (docs/lora.md). nf4: 4 bits with double quantization, as in QLoRA. int8: 8 bits.",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"load_in_4bit", "bits", "quantization_bit", "quant_bits", "bnb_4bit_quant_type", "use_4bit",
                            "double_quant"},
                  .text = "model.quantization: nf4 (or int8), with lora.rank"},
                 {.names = {"load_in_8bit", "use_8bit"}, .text = "model.quantization: int8, with lora.rank"}}});
}

void declare_options(OptionTable& table, LoraOptions& options) {
  table.set_section_description(
      "lora",
      "Low-rank adapters for frozen weights (docs/lora.md). Checkpoints then contain only the "
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
                    "a path by "
                    "whole names (`q_proj`, `mlp.fc1`), or a regular expression for the whole path "
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

}  // namespace vlmtrain::train
