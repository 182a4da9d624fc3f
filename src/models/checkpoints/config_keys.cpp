#include "models/checkpoints/config_keys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

using io::HarmlessKey;
using nlohmann::json;

// Add the keys of a new family here. A test checks the configs of all reference checkpoints and
// presets against the tables.

/// Keys read at the top of config.json.
constexpr std::array<std::string_view, 42> kTopLevelKeys{
    "base_model_type", "boi_token_id", "boi_token_index", "downsample_ratio", "dtype", "eoi_token_id",
    "eoi_token_index", "eos_token_id", "image_aspect_ratio", "image_token_id", "image_token_index", "mask_config",
    "max_volumes", "mm_hidden_size", "mm_projector_type", "mm_tokens_per_image", "mm_use_im_start_end",
    "mm_vision_select_feature", "mm_vision_select_layer", "mm_vision_tower", "model_type", "multimodal_projector_bias",
    "projector_config", "projector_hidden_act", "quantization_config", "scale_factor", "text_config",
    "tie_word_embeddings", "torch_dtype", "video_token_id", "vision_config", "vision_feature_layer",
    "vision_feature_select_strategy",
    // read by the tokenizer and the processor
    "bos_token_id", "pad_token_id", "image_token", "video_token", "vision_start_token_id", "vision_end_token_id",
    "vision_token_id", "image_seq_length", "tokenizer_model_max_length"};

/// Keys read in the settings of a text model: text_config, or the top level without it.
constexpr std::array<std::string_view, 36> kTextKeys{"attention_bias",
                                                     "attention_dropout",
                                                     "attn_logit_softcapping",
                                                     "final_logit_softcapping",
                                                     "head_dim",
                                                     "hidden_act",
                                                     "hidden_activation",
                                                     "hidden_size",
                                                     "intermediate_size",
                                                     "layer_types",
                                                     "max_position_embeddings",
                                                     "max_window_layers",
                                                     "mlp_bias",
                                                     "model_type",
                                                     "n_routed_experts",
                                                     "num_attention_heads",
                                                     "num_experts",
                                                     "num_hidden_layers",
                                                     "num_key_value_heads",
                                                     "num_local_experts",
                                                     "original_max_position_embeddings",
                                                     "quantization_config",
                                                     "query_pre_attn_scalar",
                                                     "rms_norm_eps",
                                                     "rope_local_base_freq",
                                                     "rope_parameters",
                                                     "rope_scaling",
                                                     "rope_theta",
                                                     "sliding_window",
                                                     "sliding_window_pattern",
                                                     "tie_word_embeddings",
                                                     "use_bidirectional_attention",
                                                     "use_sliding_window",
                                                     "vocab_size",
                                                     "dtype",
                                                     "torch_dtype"};

/// Keys read in vision_config.
constexpr std::array<std::string_view, 48> kVisionKeys{
    "attention_bias", "attention_dropout", "class_token", "deepstack_visual_indexes", "depth", "embed_dim",
    "fullatt_block_indexes", "hidden_act", "hidden_dropout_prob", "hidden_size", "image_size", "in_channels",
    "intermediate_size", "layer_norm_eps", "layer_scale_init_value", "max_patches", "mlp_ratio", "modalities",
    "model_type", "norm_type", "num_attention_heads", "num_channels", "num_heads", "num_hidden_layers",
    "num_position_embeddings", "out_hidden_size", "patch_size", "positions", "projection_dropout", "qkv_bias",
    "quantization_config", "rope_parameters", "spatial_merge_size", "temporal_patch_size", "tokens_per_second",
    "use_absolute_position_embeddings", "use_mask_token", "use_mean_pooling", "use_qk_norm", "vision_use_head",
    "window_size", "dtype", "torch_dtype",
    // also ignored by transformers' vision tower
    "projection_dim", "max_image_size", "size", "spatial_patch_size", "in_chans"};

/// Keys read in rope_scaling and rope_parameters.
constexpr std::array<std::string_view, 18> kRopeKeys{"attention_factor",
                                                     "beta_fast",
                                                     "beta_slow",
                                                     "factor",
                                                     "full_attention",
                                                     "high_freq_factor",
                                                     "low_freq_factor",
                                                     "mrope_interleaved",
                                                     "mrope_section",
                                                     "mscale",
                                                     "mscale_all_dim",
                                                     "original_max_position_embeddings",
                                                     "partial_rotary_factor",
                                                     "rope_theta",
                                                     "rope_type",
                                                     "sliding_attention",
                                                     "truncate",
                                                     "type"};

// Reasons why a key may be ignored.
constexpr std::string_view kProvenance = "metadata on the origin of the file";
constexpr std::string_view kGeneration = "a generation setting, which transformers 5 reads from generation_config.json";
constexpr std::string_view kOutputs = "controls the outputs of transformers' forward pass";
constexpr std::string_view kTraining = "a training setting; this run has its own";
constexpr std::string_view kInitialization = "standard deviation of the random initialization";
constexpr std::string_view kRuntime = "affects how transformers computes, not the result";
constexpr std::string_view kOtherTasks = "for tasks that this model does not support";
constexpr std::string_view kUnused = "transformers' class of this family ignores it";

/// Keys that are not read and need no warning, with the reason.
constexpr std::array kHarmless{
    HarmlessKey{"_attn_implementation_autoset", kRuntime},
    HarmlessKey{"_attn_implementation_internal", kRuntime},
    HarmlessKey{"_attn_implementation", kRuntime},
    HarmlessKey{"_commit_hash", kProvenance},
    HarmlessKey{"_flash_attn_2_enabled", kRuntime},
    HarmlessKey{"_name_or_path", kProvenance},
    HarmlessKey{"_pad_token_id", kUnused},
    HarmlessKey{"_sliding_window_pattern", "layer_types gives the same for each block"},
    HarmlessKey{"_vocab_size", kProvenance},
    HarmlessKey{"add_cross_attention", kOtherTasks},
    HarmlessKey{"architectures", kProvenance},
    HarmlessKey{"attn_implementation", kRuntime},
    HarmlessKey{"auto_map", "refers to Python code, which is not run"},
    HarmlessKey{"bad_words_ids", kGeneration},
    HarmlessKey{"begin_suppress_tokens", kGeneration},
    HarmlessKey{"bos_token_id", "the tokenizer's files are read instead"},
    HarmlessKey{"cache_implementation", kRuntime},
    HarmlessKey{"chunk_size_feed_forward", kRuntime},
    HarmlessKey{"cross_attention_hidden_size", kOtherTasks},
    HarmlessKey{"decoder_start_token_id", kOtherTasks},
    HarmlessKey{"diversity_penalty", kGeneration},
    HarmlessKey{"do_sample", kGeneration},
    HarmlessKey{"early_stopping", kGeneration},
    HarmlessKey{"encoder_no_repeat_ngram_size", kGeneration},
    HarmlessKey{"eos_token_id", "generation_config.json and the chat template are read instead"},
    HarmlessKey{"exponential_decay_length_penalty", kGeneration},
    HarmlessKey{"finetuning_task", kProvenance},
    HarmlessKey{"forced_bos_token_id", kGeneration},
    HarmlessKey{"forced_eos_token_id", kGeneration},
    HarmlessKey{"freeze_mm_mlp_adapter", kTraining},
    HarmlessKey{"freeze_mm_vision_resampler", kTraining},
    HarmlessKey{"gradient_checkpointing", kTraining},
    HarmlessKey{"id2label", kOtherTasks},
    HarmlessKey{"ignore_index", kTraining},
    HarmlessKey{"image_crop_resolution", kUnused},
    HarmlessKey{"image_grid_pinpoints", "for image_aspect_ratio anyres, which is not supported"},
    HarmlessKey{"image_split_resolution", kUnused},
    HarmlessKey{"initializer_factor", kInitialization},
    HarmlessKey{"initializer_range", kInitialization},
    HarmlessKey{"is_decoder", kOtherTasks},
    HarmlessKey{"is_encoder_decoder", kOtherTasks},
    HarmlessKey{"is_llama_config", kProvenance},
    HarmlessKey{"label2id", kOtherTasks},
    HarmlessKey{"language_model_loss_mask", kTraining},
    HarmlessKey{"length_penalty", kGeneration},
    HarmlessKey{"max_length", kGeneration},
    HarmlessKey{"min_length", kGeneration},
    HarmlessKey{"mm_patch_merge_type", "for image_aspect_ratio anyres, which is not supported"},
    HarmlessKey{"mm_projector_lr", kTraining},
    HarmlessKey{"mm_tunable_parts", kTraining},
    HarmlessKey{"mm_use_im_patch_token", "a token that prompts never contain"},
    HarmlessKey{"mm_vision_tower_lr", kTraining},
    HarmlessKey{"neftune_noise_alpha", kTraining},
    HarmlessKey{"no_repeat_ngram_size", kGeneration},
    HarmlessKey{"num_beam_groups", kGeneration},
    HarmlessKey{"num_beams", kGeneration},
    HarmlessKey{"num_return_sequences", kGeneration},
    HarmlessKey{"output_attentions", kOutputs},
    HarmlessKey{"output_hidden_states", kOutputs},
    HarmlessKey{"output_scores", kOutputs},
    HarmlessKey{"pad_token_id", "the tokenizer's files are read instead"},
    HarmlessKey{"perceiver_config", "for Idefics2; transformers' class of Idefics3 ignores it"},
    HarmlessKey{"pixel_shuffle_factor", "scale_factor at the top level replaces it"},
    HarmlessKey{"prefix", kGeneration},
    HarmlessKey{"pretrain_mm_mlp_adapter", kProvenance},
    HarmlessKey{"pretraining_tp", kRuntime},
    HarmlessKey{"problem_type", kOtherTasks},
    HarmlessKey{"projection_size", kUnused},
    HarmlessKey{"pruned_heads", kUnused},
    HarmlessKey{"remove_invalid_values", kGeneration},
    HarmlessKey{"repetition_penalty", kGeneration},
    HarmlessKey{"return_dict", kOutputs},
    HarmlessKey{"return_dict_in_generate", kOutputs},
    HarmlessKey{"sep_token_id", kOtherTasks},
    HarmlessKey{"suppress_tokens", kGeneration},
    HarmlessKey{"task_specific_params", kOtherTasks},
    HarmlessKey{"temperature", kGeneration},
    HarmlessKey{"tf_legacy_loss", kOtherTasks},
    HarmlessKey{"tie_encoder_decoder", kOtherTasks},
    HarmlessKey{"tie_word_embeddings", "a tower has no vocabulary"},
    HarmlessKey{"tokenizer_class", kProvenance},
    HarmlessKey{"tokenizer_padding_side", "samples are never padded"},
    HarmlessKey{"top_k", kGeneration},
    HarmlessKey{"top_p", kGeneration},
    HarmlessKey{"torchscript", kRuntime},
    HarmlessKey{"transformers.js_config", kRuntime},
    HarmlessKey{"transformers_version", kProvenance},
    HarmlessKey{"tune_mm_mlp_adapter", kTraining},
    HarmlessKey{"tune_mm_vision_resampler", kTraining},
    HarmlessKey{"typical_p", kGeneration},
    HarmlessKey{"unfreeze_mm_vision_tower", kTraining},
    HarmlessKey{"unsloth_fixed", kProvenance},
    HarmlessKey{"unsloth_version", kProvenance},
    HarmlessKey{"use_base_siglip", kUnused},
    HarmlessKey{"use_bfloat16", kRuntime},
    HarmlessKey{"use_cache", kRuntime},
    HarmlessKey{"use_mm_proj", kProvenance},
    HarmlessKey{"vlmtrain_version", kProvenance},
    HarmlessKey{"vocab_size", "the text model's value is used"},
};

/// A key of a setting that changes the computation.
struct ComputationKey {
  std::string_view name;
  double neutral;  ///< number that disables the setting; 0 always does
};

/// Keys that refuse_unsupported_keys() rejects unless they have the neutral value.
constexpr std::array kComputationKeys{ComputationKey{"alibi", 0},
                                      ComputationKey{"attention_chunk_size", 0},
                                      ComputationKey{"attention_multiplier", 0},
                                      ComputationKey{"attn_logit_softcapping", 0},
                                      ComputationKey{"embedding_multiplier", 1},
                                      ComputationKey{"final_logit_softcapping", 0},
                                      ComputationKey{"logit_scale", 1},
                                      ComputationKey{"logits_scaling", 1},
                                      ComputationKey{"mm_resampler_type", 0},
                                      ComputationKey{"no_rope_layers", 1},
                                      ComputationKey{"num_kv_shared_layers", 0},
                                      ComputationKey{"parallel_attn", 0},
                                      ComputationKey{"partial_rotary_factor", 1},
                                      ComputationKey{"qk_layer_norms", 0},
                                      ComputationKey{"residual_multiplier", 1},
                                      ComputationKey{"rope_interleaved", 0},
                                      ComputationKey{"rotary_pct", 1},
                                      ComputationKey{"transformers_weights", 0},
                                      ComputationKey{"use_bidirectional_attention", 0},
                                      ComputationKey{"use_qk_norm", 0},
                                      ComputationKey{"use_resampler", 0}};

/// Returns true for null, false, 0, empty values, `neutral`, and lists in which each item is
/// `neutral`.
bool is_neutral(const json& value, double neutral) {
  if (io::is_empty_value(value) || value == false || value == 0) return true;
  if (value.is_number()) return value.get<double>() == neutral;
  return value.is_array() && std::ranges::all_of(value, [&](const json& item) { return item == neutral; });
}

/// Throws UserError (kBadData) if `section` has one of kComputationKeys with another value than the
/// neutral one.
void refuse_section_keys(const json& section, const std::string& source) {
  for (const auto& [name, neutral] : kComputationKeys) {
    const auto it = section.find(name);
    if (it == section.end() || is_neutral(*it, neutral)) continue;
    throw data_error(
        "{}: {} is {}, which changes the model's results and is not supported; use a checkpoint without it", source,
        name, io::make_json_excerpt(*it));
  }
}

/// Appends the unknown keys of `section`, with `prefix`, to `unread`.
void list_unread(const json& section, std::span<const std::string_view> known_keys, const std::string& prefix,
                 std::vector<std::string>& unread) {
  for (const auto& key : io::find_unread_keys(section, known_keys, kHarmless)) {
    if (section[key] == false ||
        std::ranges::find(kComputationKeys, key, &ComputationKey::name) != kComputationKeys.end())
      continue;
    unread.push_back(prefix + make_excerpt(key));
  }
}

const json* find_section(const json& config, const char* key) {
  const auto it = config.find(key);
  return it != config.end() && it->is_object() ? &*it : nullptr;
}

void list_unread_rope_keys(const json& text, const std::string& prefix, std::vector<std::string>& unread) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* const rope = find_section(text, key);
    if (rope == nullptr) continue;
    list_unread(*rope, kRopeKeys, prefix + key + ".", unread);
  }
}

/// Returns whether config.json is nanoVLM's, which has no model_type and other keys than
/// transformers.
bool is_nanovlm(const json& config) {
  return config.contains("lm_hidden_dim");
}

}  // namespace

void refuse_unsupported_keys(const json& config, const std::string& file) {
  if (!config.is_object() || is_nanovlm(config)) return;
  refuse_section_keys(config, file);
  if (const json* const text = find_section(config, "text_config")) refuse_section_keys(*text, file + " (text_config)");
}

std::vector<std::string> list_unread_config_keys(const json& config, const std::string& file) {
  if (!config.is_object() || is_nanovlm(config)) return {};
  std::vector<std::string> unread;
  const json* const text = find_section(config, "text_config");
  std::vector<std::string_view> top_level_keys(kTopLevelKeys.begin(), kTopLevelKeys.end());
  // Files of older transformers also have the text model's keys at the top level.
  top_level_keys.insert(top_level_keys.end(), kTextKeys.begin(), kTextKeys.end());
  list_unread(config, top_level_keys, "", unread);
  list_unread_rope_keys(config, "", unread);
  if (text != nullptr) {
    list_unread(*text, kTextKeys, "text_config.", unread);
    list_unread_rope_keys(*text, "text_config.", unread);
  }
  if (const json* const vision = find_section(config, "vision_config")) {
    list_unread(*vision, kVisionKeys, "vision_config.", unread);
  }
  if (unread.empty()) return {};
  return {fmt::format("{}: {} ignored: {}; check that the model does not depend on {}", file,
                      unread.size() == 1 ? "one key is" : fmt::format("{} keys are", unread.size()),
                      fmt::join(unread, ", "), unread.size() == 1 ? "it" : "them")};
}

}  // namespace vlmtrain::models
