#include "models/checkpoints/config_keys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
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
constexpr std::array<std::string_view, 55> kTextKeys{"attention_bias",
                                                     "attention_dropout",
                                                     "attn_logit_softcapping",
                                                     "attn_output_gate",
                                                     "final_logit_softcapping",
                                                     "full_attention_interval",
                                                     "head_dim",
                                                     "hidden_act",
                                                     "hidden_activation",
                                                     "hidden_size",
                                                     "intermediate_size",
                                                     "layer_types",
                                                     "linear_conv_kernel_dim",
                                                     "linear_key_head_dim",
                                                     "linear_num_key_heads",
                                                     "linear_num_value_heads",
                                                     "linear_value_head_dim",
                                                     "max_position_embeddings",
                                                     "max_window_layers",
                                                     "mlp_bias",
                                                     "model_type",
                                                     "n_routed_experts",
                                                     "no_rope_layer_interval",
                                                     "num_attention_heads",
                                                     "num_experts",
                                                     "num_hidden_layers",
                                                     "num_key_value_heads",
                                                     "num_local_experts",
                                                     "original_max_position_embeddings",
                                                     "output_gate_type",
                                                     "partial_rotary_factor",
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
                                                     "use_double_wide_mlp",
                                                     "use_sliding_window",
                                                     "vocab_size",
                                                     "vocab_size_per_layer_input",
                                                     "dtype",
                                                     "torch_dtype",
                                                     "attention_k_eq_v",
                                                     "enable_moe_block",
                                                     "global_head_dim",
                                                     "hidden_size_per_layer_input",
                                                     "num_global_key_value_heads",
                                                     "num_kv_shared_layers",
                                                     "per_layer_config"};

/// Keys read in vision_config.
constexpr std::array<std::string_view, 59> kVisionKeys{
    "attention_bias", "attention_dropout", "class_token", "deepstack_visual_indexes", "depth", "embed_dim",
    "fullatt_block_indexes", "hidden_act", "hidden_dropout_prob", "hidden_size", "image_size", "in_channels",
    "intermediate_size", "layer_norm_eps", "layer_scale_init_value", "max_patches", "mlp_ratio", "modalities",
    "model_type", "norm_type", "num_attention_heads", "num_channels", "num_heads", "num_hidden_layers",
    "num_position_embeddings", "out_hidden_size", "patch_size", "positions", "projection_dropout", "qkv_bias",
    "quantization_config", "rope_parameters", "spatial_merge_size", "temporal_patch_size", "tokens_per_second",
    "use_absolute_position_embeddings", "use_mask_token", "use_mean_pooling", "use_qk_norm", "vision_use_head",
    "window_size", "dtype", "torch_dtype",
    // also ignored by transformers' vision tower
    "projection_dim", "max_image_size", "size", "spatial_patch_size", "in_chans", "head_dim", "hidden_activation",
    "mm_embed_dim", "mm_posemb_size", "num_key_value_heads", "output_proj_dims", "pooling_kernel_size",
    "position_embedding_size", "rms_norm_eps", "standardize", "use_clipped_linears"};

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
constexpr std::string_view kProvenanceReason = "metadata on the origin of the file";
constexpr std::string_view kGenerationReason =
    "a generation setting, which transformers 5 reads from generation_config.json";
constexpr std::string_view kIgnoredOutputSettingReason = "controls the outputs of transformers' forward pass";
constexpr std::string_view kTrainingReason = "a training setting; this run has its own";
constexpr std::string_view kInitializationReason = "standard deviation of the random initialization";
constexpr std::string_view kComputationReason = "affects how transformers computes, not the result";
constexpr std::string_view kOtherTasksReason = "for tasks that this model does not support";
constexpr std::string_view kPassedThroughReason = "for multi-token prediction, whose weights are kept but not trained";
constexpr std::string_view kAudioReason = "for audio, whose modules are kept but not run";
constexpr std::string_view kOtherSizesReason = "for other sizes of Gemma 4, which are refused by other keys";
constexpr std::string_view kUnusedReason = "transformers' class of this family ignores it";

/// Keys that are not read and need no warning, with the reason.
constexpr std::array kHarmlessConfigKeys{
    HarmlessKey{"_attn_implementation", kComputationReason},
    HarmlessKey{"_attn_implementation_autoset", kComputationReason},
    HarmlessKey{"_attn_implementation_internal", kComputationReason},
    HarmlessKey{"_commit_hash", kProvenanceReason},
    HarmlessKey{"_flash_attn_2_enabled", kComputationReason},
    HarmlessKey{"_name_or_path", kProvenanceReason},
    HarmlessKey{"_pad_token_id", kUnusedReason},
    HarmlessKey{"_sliding_window_pattern", "layer_types gives the same for each block"},
    HarmlessKey{"_vocab_size", kProvenanceReason},
    HarmlessKey{"add_cross_attention", kOtherTasksReason},
    HarmlessKey{"architectures", kProvenanceReason},
    HarmlessKey{"attn_implementation", kComputationReason},
    HarmlessKey{"audio_config", kAudioReason},
    HarmlessKey{"audio_token_id", kAudioReason},
    HarmlessKey{"auto_map", "refers to Python code, which is not run"},
    HarmlessKey{"bad_words_ids", kGenerationReason},
    HarmlessKey{"begin_suppress_tokens", kGenerationReason},
    HarmlessKey{"boa_token_id", kAudioReason},
    HarmlessKey{"bos_token_id", "the tokenizer's files are read instead"},
    HarmlessKey{"cache_implementation", kComputationReason},
    HarmlessKey{"chunk_size_feed_forward", kComputationReason},
    HarmlessKey{"cross_attention_hidden_size", kOtherTasksReason},
    HarmlessKey{"decoder_start_token_id", kOtherTasksReason},
    HarmlessKey{"default_output_length", "the processor's max_soft_tokens is read instead"},
    HarmlessKey{"diversity_penalty", kGenerationReason},
    HarmlessKey{"do_sample", kGenerationReason},
    HarmlessKey{"early_stopping", kGenerationReason},
    HarmlessKey{"encoder_no_repeat_ngram_size", kGenerationReason},
    HarmlessKey{"eoa_token_index", kAudioReason},
    HarmlessKey{"eos_token_id", "generation_config.json and the chat template are read instead"},
    HarmlessKey{"exponential_decay_length_penalty", kGenerationReason},
    HarmlessKey{"finetuning_task", kProvenanceReason},
    HarmlessKey{"forced_bos_token_id", kGenerationReason},
    HarmlessKey{"forced_eos_token_id", kGenerationReason},
    HarmlessKey{"freeze_mm_mlp_adapter", kTrainingReason},
    HarmlessKey{"freeze_mm_vision_resampler", kTrainingReason},
    HarmlessKey{"gradient_checkpointing", kTrainingReason},
    HarmlessKey{"id2label", kOtherTasksReason},
    HarmlessKey{"ignore_index", kTrainingReason},
    HarmlessKey{"image_crop_resolution", kUnusedReason},
    HarmlessKey{"image_grid_pinpoints", "for image_aspect_ratio anyres, which is not supported"},
    HarmlessKey{"image_split_resolution", kUnusedReason},
    HarmlessKey{"initializer_factor", kInitializationReason},
    HarmlessKey{"initializer_range", kInitializationReason},
    HarmlessKey{"is_decoder", kOtherTasksReason},
    HarmlessKey{"is_encoder_decoder", kOtherTasksReason},
    HarmlessKey{"is_llama_config", kProvenanceReason},
    HarmlessKey{"label2id", kOtherTasksReason},
    HarmlessKey{"language_model_loss_mask", kTrainingReason},
    HarmlessKey{"length_penalty", kGenerationReason},
    HarmlessKey{"mamba_ssm_dtype", kComputationReason},
    HarmlessKey{"max_length", kGenerationReason},
    HarmlessKey{"max_position_embeddings", "a tower has a table of positions"},
    HarmlessKey{"min_length", kGenerationReason},
    HarmlessKey{"mm_patch_merge_type", "for image_aspect_ratio anyres, which is not supported"},
    HarmlessKey{"mm_projector_lr", kTrainingReason},
    HarmlessKey{"mm_tunable_parts", kTrainingReason},
    HarmlessKey{"mm_use_im_patch_token", "a token that prompts never contain"},
    HarmlessKey{"mm_vision_tower_lr", kTrainingReason},
    HarmlessKey{"model_patch_size", "follows from patch_size and pooling_kernel_size"},
    HarmlessKey{"moe_intermediate_size", kOtherSizesReason},
    HarmlessKey{"mtp_num_hidden_layers", kPassedThroughReason},
    HarmlessKey{"mtp_use_dedicated_embeddings", kPassedThroughReason},
    HarmlessKey{"neftune_noise_alpha", kTrainingReason},
    HarmlessKey{"no_repeat_ngram_size", kGenerationReason},
    HarmlessKey{"num_beam_groups", kGenerationReason},
    HarmlessKey{"num_beams", kGenerationReason},
    HarmlessKey{"num_return_sequences", kGenerationReason},
    HarmlessKey{"num_soft_tokens", "the processor's max_soft_tokens is read instead"},
    HarmlessKey{"output_attentions", kIgnoredOutputSettingReason},
    HarmlessKey{"output_hidden_states", kIgnoredOutputSettingReason},
    HarmlessKey{"output_scores", kIgnoredOutputSettingReason},
    HarmlessKey{"pad_token_id", "the tokenizer's files are read instead"},
    HarmlessKey{"perceiver_config", "for Idefics2; transformers' class of Idefics3 ignores it"},
    HarmlessKey{"pixel_shuffle_factor", "scale_factor at the top level replaces it"},
    HarmlessKey{"prefix", kGenerationReason},
    HarmlessKey{"pretrain_mm_mlp_adapter", kProvenanceReason},
    HarmlessKey{"pretraining_tp", kComputationReason},
    HarmlessKey{"problem_type", kOtherTasksReason},
    HarmlessKey{"projection_size", kUnusedReason},
    HarmlessKey{"pruned_heads", kUnusedReason},
    HarmlessKey{"remove_invalid_values", kGenerationReason},
    HarmlessKey{"repetition_penalty", kGenerationReason},
    HarmlessKey{"return_dict", kIgnoredOutputSettingReason},
    HarmlessKey{"return_dict_in_generate", kIgnoredOutputSettingReason},
    HarmlessKey{"sep_token_id", kOtherTasksReason},
    HarmlessKey{"suppress_tokens", kGenerationReason},
    HarmlessKey{"task_specific_params", kOtherTasksReason},
    HarmlessKey{"temperature", kGenerationReason},
    HarmlessKey{"tf_legacy_loss", kOtherTasksReason},
    HarmlessKey{"tie_encoder_decoder", kOtherTasksReason},
    HarmlessKey{"tie_word_embeddings", "a tower has no vocabulary"},
    HarmlessKey{"tokenizer_class", kProvenanceReason},
    HarmlessKey{"tokenizer_padding_side", "samples are never padded"},
    HarmlessKey{"top_k", kGenerationReason},
    HarmlessKey{"top_k_experts", kOtherSizesReason},
    HarmlessKey{"top_p", kGenerationReason},
    HarmlessKey{"torchscript", kComputationReason},
    HarmlessKey{"transformers.js_config", kComputationReason},
    HarmlessKey{"transformers_version", kProvenanceReason},
    HarmlessKey{"tune_mm_mlp_adapter", kTrainingReason},
    HarmlessKey{"tune_mm_vision_resampler", kTrainingReason},
    HarmlessKey{"typical_p", kGenerationReason},
    HarmlessKey{"unfreeze_mm_vision_tower", kTrainingReason},
    HarmlessKey{"unsloth_fixed", kProvenanceReason},
    HarmlessKey{"unsloth_version", kProvenanceReason},
    HarmlessKey{"use_base_siglip", kUnusedReason},
    HarmlessKey{"use_bfloat16", kComputationReason},
    HarmlessKey{"use_cache", kComputationReason},
    HarmlessKey{"use_mm_proj", kProvenanceReason},
    HarmlessKey{"vlmtrain_version", kProvenanceReason},
    HarmlessKey{"vocab_size", "the text model's value is used"},
};

/// A key of a setting that changes the computation.
struct UnsupportedSetting {
  std::string_view name;
  double neutral_value;  ///< number that disables the setting; 0 always does
};

/// Keys that reject_unsupported_keys() rejects unless they have the neutral value.
constexpr std::array kUnsupportedSettings{UnsupportedSetting{"alibi", 0},
                                          UnsupportedSetting{"attention_chunk_size", 0},
                                          UnsupportedSetting{"attention_multiplier", 0},
                                          UnsupportedSetting{"attn_logit_softcapping", 0},
                                          UnsupportedSetting{"embedding_multiplier", 1},
                                          UnsupportedSetting{"final_logit_softcapping", 0},
                                          UnsupportedSetting{"language_model_only", 0},
                                          UnsupportedSetting{"logit_scale", 1},
                                          UnsupportedSetting{"logits_scaling", 1},
                                          UnsupportedSetting{"mlp_only_layers", 0},
                                          UnsupportedSetting{"mm_resampler_type", 0},
                                          UnsupportedSetting{"no_rope_layers", 1},
                                          UnsupportedSetting{"num_kv_shared_layers", 0},
                                          UnsupportedSetting{"parallel_attn", 0},
                                          UnsupportedSetting{"partial_rotary_factor", 1},
                                          UnsupportedSetting{"qk_layer_norms", 0},
                                          UnsupportedSetting{"residual_multiplier", 1},
                                          UnsupportedSetting{"rope_interleaved", 0},
                                          UnsupportedSetting{"rotary_pct", 1},
                                          UnsupportedSetting{"transformers_weights", 0},
                                          UnsupportedSetting{"use_bidirectional_attention", 0},
                                          UnsupportedSetting{"use_qk_norm", 0},
                                          UnsupportedSetting{"use_resampler", 0}};

/// Returns true for null, false, 0, empty values, `neutral_value`, and lists in which each item is
/// `neutral_value`.
bool is_neutral_value(const json& value, double neutral_value) {
  if (io::is_empty_value(value) || value == false || value == 0) return true;
  if (value.is_number()) return value.get<double>() == neutral_value;
  return value.is_array() && std::ranges::all_of(value, [&](const json& item) { return item == neutral_value; });
}

/// Returns whether the text model of `section` follows the setting `name` of kUnsupportedSettings.
bool is_read_setting(const json& section, std::string_view name) {
  const json type = section.value("model_type", json());
  return (name == "no_rope_layers" && type == "smollm3") ||
         ((name == "final_logit_softcapping" || name == "num_kv_shared_layers" ||
           name == "use_bidirectional_attention") &&
          (type == "gemma4_text" || type == "gemma4_unified_text")) ||
         (name == "partial_rotary_factor" && (type == "qwen3_5_text" || type == "qwen3_5"));
}

/// Throws UserError (kBadData) if `section` has one of kUnsupportedSettings with another value than
/// the neutral one.
void reject_unsupported_settings(const json& section, const std::string& source) {
  for (const auto& [name, neutral_value] : kUnsupportedSettings) {
    const auto it = section.find(name);
    if (it == section.end() || is_neutral_value(*it, neutral_value) || is_read_setting(section, name)) continue;
    throw data_error(
        "{}: {} is {}, which changes the model's results and is not supported; use a checkpoint without it", source,
        name, io::make_json_excerpt(*it));
  }
}

/// Appends the unknown keys of `section`, with `prefix`, to `unread_keys`.
void append_unread_keys(const json& section, std::span<const std::string_view> recognized_keys,
                        const std::string& prefix, std::vector<std::string>& unread_keys) {
  for (const auto& key : io::find_unread_keys(section, recognized_keys, kHarmlessConfigKeys)) {
    if (section[key] == false ||
        std::ranges::find(kUnsupportedSettings, key, &UnsupportedSetting::name) != kUnsupportedSettings.end())
      continue;
    unread_keys.push_back(prefix + make_excerpt(key));
  }
}

const json* find_section(const json& config, const char* key) {
  const auto it = config.find(key);
  return it != config.end() && it->is_object() ? &*it : nullptr;
}

void append_unread_rope_keys(const json& text, const std::string& prefix, std::vector<std::string>& unread_keys) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* const rope = find_section(text, key);
    if (rope == nullptr) continue;
    append_unread_keys(*rope, kRopeKeys, prefix + key + ".", unread_keys);
  }
}

/// Returns whether config.json is nanoVLM's, which has no model_type and other keys than
/// transformers.
bool is_nanovlm_config(const json& config) {
  return config.contains("lm_hidden_dim");
}

}  // namespace

void reject_unsupported_keys(const json& config, const std::string& file) {
  if (!config.is_object() || is_nanovlm_config(config)) return;
  reject_unsupported_settings(config, file);
  if (const json* const text = find_section(config, "text_config"))
    reject_unsupported_settings(*text, file + " (text_config)");
}

std::vector<std::string> list_unread_config_keys(const json& config, const std::string& file) {
  if (!config.is_object() || is_nanovlm_config(config)) return {};
  std::vector<std::string> unread_keys;
  const json* const text = find_section(config, "text_config");
  std::vector<std::string_view> top_level_keys(kTopLevelKeys.begin(), kTopLevelKeys.end());
  // Files of older transformers also have the text model's keys at the top level.
  top_level_keys.insert(top_level_keys.end(), kTextKeys.begin(), kTextKeys.end());
  append_unread_keys(config, top_level_keys, "", unread_keys);
  append_unread_rope_keys(config, "", unread_keys);
  if (text != nullptr) {
    append_unread_keys(*text, kTextKeys, "text_config.", unread_keys);
    append_unread_rope_keys(*text, "text_config.", unread_keys);
  }
  if (const json* const vision = find_section(config, "vision_config")) {
    append_unread_keys(*vision, kVisionKeys, "vision_config.", unread_keys);
  }
  if (unread_keys.empty()) return {};
  return {fmt::format("{}: {} ignored: {}; check that the model does not depend on {}", file,
                      unread_keys.size() == 1 ? "one key is" : fmt::format("{} keys are", unread_keys.size()),
                      fmt::join(unread_keys, ", "), unread_keys.size() == 1 ? "it" : "them")};
}

}  // namespace vlmtrain::models
