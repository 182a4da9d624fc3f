#include "models/checkpoints/config_keys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/io/unread_keys.h"

namespace vlmtrain::models {

namespace {

using io::HarmlessKey;
using nlohmann::json;

// A new family adds here what it reads; a test runs every reference checkpoint and preset through the table.

/// Read at the top of config.json.
constexpr std::array<std::string_view, 42> kReadAtTop{
    "base_model_type", "boi_token_id", "boi_token_index", "downsample_ratio", "dtype", "eoi_token_id",
    "eoi_token_index", "eos_token_id", "image_aspect_ratio", "image_token_id", "image_token_index", "mask_config",
    "max_volumes", "mm_hidden_size", "mm_projector_type", "mm_tokens_per_image", "mm_use_im_start_end",
    "mm_vision_select_feature", "mm_vision_select_layer", "mm_vision_tower", "model_type", "multimodal_projector_bias",
    "projector_config", "projector_hidden_act", "quantization_config", "scale_factor", "text_config",
    "tie_word_embeddings", "torch_dtype", "video_token_id", "vision_config", "vision_feature_layer",
    "vision_feature_select_strategy",
    // of the tokenizer and the processor
    "bos_token_id", "pad_token_id", "image_token", "video_token", "vision_start_token_id", "vision_end_token_id",
    "vision_token_id", "image_seq_length", "tokenizer_model_max_length"};

/// Read in the settings of a text model: text_config, or the top where there is none.
constexpr std::array<std::string_view, 36> kReadOfText{"attention_bias",
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

constexpr std::array<std::string_view, 48> kReadOfVision{
    "attention_bias", "attention_dropout", "class_token", "deepstack_visual_indexes", "depth", "embed_dim",
    "fullatt_block_indexes", "hidden_act", "hidden_dropout_prob", "hidden_size", "image_size", "in_channels",
    "intermediate_size", "layer_norm_eps", "layer_scale_init_value", "max_patches", "mlp_ratio", "modalities",
    "model_type", "norm_type", "num_attention_heads", "num_channels", "num_heads", "num_hidden_layers",
    "num_position_embeddings", "out_hidden_size", "patch_size", "positions", "projection_dropout", "qkv_bias",
    "quantization_config", "rope_parameters", "spatial_merge_size", "temporal_patch_size", "tokens_per_second",
    "use_absolute_position_embeddings", "use_mask_token", "use_mean_pooling", "use_qk_norm", "vision_use_head",
    "window_size", "dtype", "torch_dtype",
    // as transformers, which builds the tower without them
    "projection_dim", "max_image_size", "size", "spatial_patch_size", "in_chans"};

constexpr std::array<std::string_view, 18> kReadOfRope{"attention_factor",
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

constexpr std::string_view kRecord = "a record of how the file came about";
constexpr std::string_view kGeneration = "a setting of generation, which transformers 5 reads elsewhere";
constexpr std::string_view kOutputs = "what transformers' forward pass returns";
constexpr std::string_view kTraining = "how it was trained; this run has its own settings";
constexpr std::string_view kStart = "the spread of values drawn at random";
constexpr std::string_view kRuntime = "how transformers computes, not what";
constexpr std::string_view kOtherTasks = "of tasks other than this model's";
constexpr std::string_view kUnused = "transformers' class of the family does not read it";

constexpr std::array kHarmless{
    HarmlessKey{"_attn_implementation_autoset", kRuntime},
    HarmlessKey{"_attn_implementation_internal", kRuntime},
    HarmlessKey{"_attn_implementation", kRuntime},
    HarmlessKey{"_commit_hash", kRecord},
    HarmlessKey{"_flash_attn_2_enabled", kRuntime},
    HarmlessKey{"_name_or_path", kRecord},
    HarmlessKey{"_pad_token_id", kUnused},
    HarmlessKey{"_sliding_window_pattern", "layer_types beside it says the same of each block"},
    HarmlessKey{"_vocab_size", kRecord},
    HarmlessKey{"add_cross_attention", kOtherTasks},
    HarmlessKey{"architectures", kRecord},
    HarmlessKey{"attn_implementation", kRuntime},
    HarmlessKey{"auto_map", "the place of Python code, which is not run"},
    HarmlessKey{"bad_words_ids", kGeneration},
    HarmlessKey{"begin_suppress_tokens", kGeneration},
    HarmlessKey{"bos_token_id", "the tokenizer's files say it"},
    HarmlessKey{"cache_implementation", kRuntime},
    HarmlessKey{"chunk_size_feed_forward", kRuntime},
    HarmlessKey{"cross_attention_hidden_size", kOtherTasks},
    HarmlessKey{"decoder_start_token_id", kOtherTasks},
    HarmlessKey{"diversity_penalty", kGeneration},
    HarmlessKey{"do_sample", kGeneration},
    HarmlessKey{"early_stopping", kGeneration},
    HarmlessKey{"encoder_no_repeat_ngram_size", kGeneration},
    HarmlessKey{"eos_token_id", "generation_config.json and the template say it"},
    HarmlessKey{"exponential_decay_length_penalty", kGeneration},
    HarmlessKey{"finetuning_task", kRecord},
    HarmlessKey{"forced_bos_token_id", kGeneration},
    HarmlessKey{"forced_eos_token_id", kGeneration},
    HarmlessKey{"freeze_mm_mlp_adapter", kTraining},
    HarmlessKey{"freeze_mm_vision_resampler", kTraining},
    HarmlessKey{"gradient_checkpointing", kTraining},
    HarmlessKey{"id2label", kOtherTasks},
    HarmlessKey{"ignore_index", kTraining},
    HarmlessKey{"image_crop_resolution", kUnused},
    HarmlessKey{"image_grid_pinpoints", "of image_aspect_ratio anyres, which is refused"},
    HarmlessKey{"image_split_resolution", kUnused},
    HarmlessKey{"initializer_factor", kStart},
    HarmlessKey{"initializer_range", kStart},
    HarmlessKey{"is_decoder", kOtherTasks},
    HarmlessKey{"is_encoder_decoder", kOtherTasks},
    HarmlessKey{"is_llama_config", kRecord},
    HarmlessKey{"label2id", kOtherTasks},
    HarmlessKey{"language_model_loss_mask", kTraining},
    HarmlessKey{"length_penalty", kGeneration},
    HarmlessKey{"max_length", kGeneration},
    HarmlessKey{"min_length", kGeneration},
    HarmlessKey{"mm_patch_merge_type", "of image_aspect_ratio anyres, which is refused"},
    HarmlessKey{"mm_projector_lr", kTraining},
    HarmlessKey{"mm_tunable_parts", kTraining},
    HarmlessKey{"mm_use_im_patch_token", "a token that no prompt has"},
    HarmlessKey{"mm_vision_tower_lr", kTraining},
    HarmlessKey{"neftune_noise_alpha", kTraining},
    HarmlessKey{"no_repeat_ngram_size", kGeneration},
    HarmlessKey{"num_beam_groups", kGeneration},
    HarmlessKey{"num_beams", kGeneration},
    HarmlessKey{"num_return_sequences", kGeneration},
    HarmlessKey{"output_attentions", kOutputs},
    HarmlessKey{"output_hidden_states", kOutputs},
    HarmlessKey{"output_scores", kOutputs},
    HarmlessKey{"pad_token_id", "the tokenizer's files say it"},
    HarmlessKey{"perceiver_config", "of Idefics2; Idefics3's class does not read it"},
    HarmlessKey{"pixel_shuffle_factor", "scale_factor at the top says it"},
    HarmlessKey{"prefix", kGeneration},
    HarmlessKey{"pretrain_mm_mlp_adapter", kRecord},
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
    HarmlessKey{"tie_word_embeddings", "of a tower, which has no words"},
    HarmlessKey{"tokenizer_class", kRecord},
    HarmlessKey{"tokenizer_padding_side", "nothing is padded"},
    HarmlessKey{"top_k", kGeneration},
    HarmlessKey{"top_p", kGeneration},
    HarmlessKey{"torchscript", kRuntime},
    HarmlessKey{"transformers.js_config", kRuntime},
    HarmlessKey{"transformers_version", kRecord},
    HarmlessKey{"tune_mm_mlp_adapter", kTraining},
    HarmlessKey{"tune_mm_vision_resampler", kTraining},
    HarmlessKey{"typical_p", kGeneration},
    HarmlessKey{"unfreeze_mm_vision_tower", kTraining},
    HarmlessKey{"unsloth_fixed", kRecord},
    HarmlessKey{"unsloth_version", kRecord},
    HarmlessKey{"use_base_siglip", kUnused},
    HarmlessKey{"use_bfloat16", kRuntime},
    HarmlessKey{"use_cache", kRuntime},
    HarmlessKey{"use_mm_proj", kRecord},
    HarmlessKey{"vlmtrain_version", kRecord},
    HarmlessKey{"vocab_size", "the text model's counts"},
};

/// A key that changes what a model computes, and the number with which it changes nothing; 0: none but 0.
struct AlteringKey {
  std::string_view name;
  double neutral;
};

constexpr std::array kAltering{AlteringKey{"alibi", 0},
                               AlteringKey{"attention_chunk_size", 0},
                               AlteringKey{"attention_multiplier", 0},
                               AlteringKey{"attn_logit_softcapping", 0},
                               AlteringKey{"embedding_multiplier", 1},
                               AlteringKey{"final_logit_softcapping", 0},
                               AlteringKey{"logit_scale", 1},
                               AlteringKey{"logits_scaling", 1},
                               AlteringKey{"mm_resampler_type", 0},
                               AlteringKey{"no_rope_layers", 1},
                               AlteringKey{"num_kv_shared_layers", 0},
                               AlteringKey{"parallel_attn", 0},
                               AlteringKey{"partial_rotary_factor", 1},
                               AlteringKey{"qk_layer_norms", 0},
                               AlteringKey{"residual_multiplier", 1},
                               AlteringKey{"rope_interleaved", 0},
                               AlteringKey{"rotary_pct", 1},
                               AlteringKey{"transformers_weights", 0},
                               AlteringKey{"use_bidirectional_attention", 0},
                               AlteringKey{"use_qk_norm", 0},
                               AlteringKey{"use_resampler", 0}};

/// null, false, 0 and empty values, `neutral`, and lists of it.
bool is_neutral(const json& value, double neutral) {
  if (io::is_empty_value(value) || value == false || value == 0) return true;
  if (value.is_number()) return value.get<double>() == neutral;
  return value.is_array() && std::ranges::all_of(value, [&](const json& item) { return item == neutral; });
}

void refuse_in(const json& section, const std::string& place) {
  for (const auto& [name, neutral] : kAltering) {
    const auto found = section.find(name);
    if (found == section.end() || is_neutral(*found, neutral)) continue;
    throw data_error(
        "{}: {} is {}, which changes what the model computes and is not supported; take a checkpoint without it", place,
        name, io::json_excerpt(*found));
  }
}

void list_unread(const json& section, std::span<const std::string_view> read, const std::string& prefix,
                 std::vector<std::string>& unread) {
  for (const auto& key : io::unread_keys(section, read, kHarmless)) {
    if (section[key] == false || std::ranges::find(kAltering, key, &AlteringKey::name) != kAltering.end()) continue;
    unread.push_back(prefix + excerpt(key));
  }
}

const json* section_at(const json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_object() ? &*found : nullptr;
}

void list_rope(const json& text, const std::string& prefix, std::vector<std::string>& unread) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* const rope = section_at(text, key);
    if (rope == nullptr) continue;
    list_unread(*rope, kReadOfRope, prefix + key + ".", unread);
  }
}

bool is_nanovlm(const json& config) {
  return config.contains("lm_hidden_dim");
}

}  // namespace

void refuse_altering_keys(const json& config, const std::string& file) {
  if (!config.is_object() || is_nanovlm(config)) return;
  refuse_in(config, file);
  if (const json* const text = section_at(config, "text_config")) refuse_in(*text, file + " (text_config)");
}

std::vector<std::string> unread_config_keys(const json& config, const std::string& file) {
  if (!config.is_object() || is_nanovlm(config)) return {};
  std::vector<std::string> unread;
  const json* const text = section_at(config, "text_config");
  std::vector<std::string_view> at_top(kReadAtTop.begin(), kReadAtTop.end());
  // Files of older transformers have the text model's keys at the top as well.
  at_top.insert(at_top.end(), kReadOfText.begin(), kReadOfText.end());
  list_unread(config, at_top, "", unread);
  list_rope(config, "", unread);
  if (text != nullptr) {
    list_unread(*text, kReadOfText, "text_config.", unread);
    list_rope(*text, "text_config.", unread);
  }
  if (const json* const vision = section_at(config, "vision_config")) {
    list_unread(*vision, kReadOfVision, "vision_config.", unread);
  }
  if (unread.empty()) return {};
  return {fmt::format("{}: {} not read: {}; a model that depends on {} is not the one that is trained", file,
                      unread.size() == 1 ? "one key is" : fmt::format("{} keys are", unread.size()),
                      fmt::join(unread, ", "), unread.size() == 1 ? "it" : "them")};
}

}  // namespace vlmtrain::models
