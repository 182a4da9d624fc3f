#include "vlmtrain/models/checkpoint_info.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/checkpoints/config_checks.h"
#include "models/checkpoints/config_keys.h"
#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/tensor_names.h"
#include "models/family.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models {

std::vector<std::string> list_checkpoint_warnings(const std::filesystem::path& folder) {
  const std::string file = (folder / "config.json").string();
  const auto config = read_model_config(folder);
  std::vector<std::string> warnings = rethrow_json_errors(folder, [&] {
    std::vector<std::string> result;
    const Family& family = find_family(config, folder);
    if (reconcile_tied_output(config, family, folder) != config) {
      const auto tensors = find_output_tensor_names(io::read_checkpoint_tensor_names(folder));
      result.push_back(fmt::format(
          "{}: {} ties {} to {}, but their values differ in the weights; both are loaded, trained and "
          "saved, and saved checkpoints have {}: false",
          file, get_tie_config_key(config), tensors->output, tensors->embedding, get_tie_config_key(config)));
    }
    return result;
  });
  if (const std::string section = find_quantization_config(config); !section.empty()) {
    warnings.push_back(
        fmt::format("{}: {} describes quantized weights, but the weights in the folder are not quantized; it is "
                    "ignored and not saved",
                    file, section));
  }
  for (auto& warning : list_unread_config_keys(config, file)) warnings.push_back(std::move(warning));
  for (auto& warning : io::list_weight_file_warnings(folder)) warnings.push_back(std::move(warning));
  return warnings;
}

bool predicts_masks(const std::filesystem::path& folder) {
  return find_family(read_model_config(folder), folder).get_mask_side != nullptr;
}

bool takes_media(const std::filesystem::path& folder) {
  const Family& family = find_family(read_model_config(folder), folder);
  return family.compute_image_sample_shape != nullptr || family.compute_video_sample_shape != nullptr ||
         family.compute_volume_sample_shape != nullptr;
}

bool has_per_layer_embeddings(const std::filesystem::path& folder) {
  return build_model(folder, at::kMeta, at::kFloat)->parameters().find_per_layer_table() != nullptr;
}

std::vector<std::string> get_default_modules_to_save(const std::filesystem::path& folder, const FrozenParts& frozen) {
  std::vector<std::string> modules;
  if (!std::filesystem::exists(folder / "config.json")) return modules;
  for (const auto& [module, component] : find_family(read_model_config(folder), folder).default_modules_to_save) {
    if (component == nn::Component::kMaskEncoder && frozen.mask_encoder) continue;
    modules.emplace_back(module);
  }
  return modules;
}

namespace {

using io::HarmlessKey;

constexpr std::array<std::string_view, 1> kAppliedGenerationKeys{"eos_token_id"};

constexpr std::string_view kSamplingReason = "a sampling setting: --temperature, --top-k and --top-p replace it";
constexpr std::string_view kLengthLimitReason = "--max-new-tokens replaces it";
constexpr std::string_view kPaddingReason = "samples are never padded, and the prompt has its own start";
constexpr std::string_view kRuntimeReason = "affects how answers are computed or returned, not their text";
constexpr std::string_view kBeamSearchReason = "a beam search setting, which num_beams enables";

constexpr std::array kHarmlessGenerationKeys{HarmlessKey{"do_sample", kSamplingReason},
                                             HarmlessKey{"temperature", kSamplingReason},
                                             HarmlessKey{"top_k", kSamplingReason},
                                             HarmlessKey{"top_p", kSamplingReason},
                                             HarmlessKey{"min_p", kSamplingReason},
                                             HarmlessKey{"top_h", kSamplingReason},
                                             HarmlessKey{"typical_p", kSamplingReason},
                                             HarmlessKey{"epsilon_cutoff", kSamplingReason},
                                             HarmlessKey{"eta_cutoff", kSamplingReason},
                                             HarmlessKey{"max_length", kLengthLimitReason},
                                             HarmlessKey{"max_new_tokens", kLengthLimitReason},
                                             HarmlessKey{"bos_token_id", kPaddingReason},
                                             HarmlessKey{"pad_token_id", kPaddingReason},
                                             HarmlessKey{"decoder_start_token_id", kPaddingReason},
                                             HarmlessKey{"length_penalty", kBeamSearchReason},
                                             HarmlessKey{"early_stopping", kBeamSearchReason},
                                             HarmlessKey{"num_beam_groups", kBeamSearchReason},
                                             HarmlessKey{"diversity_penalty", kBeamSearchReason},
                                             HarmlessKey{"transformers_version", kRuntimeReason},
                                             HarmlessKey{"_from_model_config", kRuntimeReason},
                                             HarmlessKey{"use_cache", kRuntimeReason},
                                             HarmlessKey{"cache_implementation", kRuntimeReason},
                                             HarmlessKey{"cache_config", kRuntimeReason},
                                             HarmlessKey{"max_cache_len", kRuntimeReason},
                                             HarmlessKey{"return_legacy_cache", kRuntimeReason},
                                             HarmlessKey{"return_dict_in_generate", kRuntimeReason},
                                             HarmlessKey{"num_return_sequences", kRuntimeReason},
                                             HarmlessKey{"output_attentions", kRuntimeReason},
                                             HarmlessKey{"output_hidden_states", kRuntimeReason},
                                             HarmlessKey{"output_scores", kRuntimeReason},
                                             HarmlessKey{"output_logits", kRuntimeReason},
                                             HarmlessKey{"remove_invalid_values", kRuntimeReason},
                                             HarmlessKey{"renormalize_logits", kRuntimeReason},
                                             HarmlessKey{"compile_config", kRuntimeReason},
                                             HarmlessKey{"disable_compile", kRuntimeReason},
                                             HarmlessKey{"prefill_chunk_size", kRuntimeReason},
                                             HarmlessKey{"low_memory", kRuntimeReason},
                                             HarmlessKey{"is_assistant", kRuntimeReason},
                                             HarmlessKey{"num_assistant_tokens", kRuntimeReason},
                                             HarmlessKey{"num_assistant_tokens_schedule", kRuntimeReason},
                                             HarmlessKey{"assistant_confidence_threshold", kRuntimeReason},
                                             HarmlessKey{"assistant_early_exit", kRuntimeReason},
                                             HarmlessKey{"assistant_lookbehind", kRuntimeReason},
                                             HarmlessKey{"target_lookbehind", kRuntimeReason},
                                             HarmlessKey{"prompt_lookup_num_tokens", kRuntimeReason},
                                             HarmlessKey{"max_matching_ngram_size", kRuntimeReason},
                                             HarmlessKey{"transformers.js_config", kRuntimeReason}};

/// Returns whether transformers' generate() ignores a setting with this value: false for switches,
/// 0 and 1 for penalties and counts.
bool is_neutral_value(const nlohmann::json& value) {
  static const std::array<nlohmann::json, 3> kNeutralValues{false, 0, 1};
  return std::ranges::find(kNeutralValues, value) != kNeutralValues.end();
}

}  // namespace

std::vector<int64_t> load_eos_token_ids(const std::filesystem::path& folder, const Processor& processor,
                                        const std::filesystem::path& adapter) {
  constexpr const char* kGenerationConfigFileName = "generation_config.json";
  if (adapter.empty() && is_adapter(folder)) {
    const bool has_generation_config = std::filesystem::exists(folder / kGenerationConfigFileName);
    return load_eos_token_ids(has_generation_config ? folder : find_adapter_base(folder), processor, folder);
  }
  std::vector<int64_t> ids{processor.end_of_turn_id()};
  const bool uses_adapter_generation_config =
      !adapter.empty() && std::filesystem::exists(adapter / kGenerationConfigFileName);
  const auto file = (uses_adapter_generation_config ? adapter : folder) / kGenerationConfigFileName;
  if (!std::filesystem::exists(file)) return ids;
  for (const int64_t id : text::parse_eos_token_ids(io::read_json(file), file.string())) {
    if (std::ranges::count(ids, id) == 0) ids.push_back(id);
  }
  return ids;
}

std::vector<std::string> find_unapplied_generation_settings(const std::filesystem::path& folder) {
  const auto file = folder / "generation_config.json";
  if (!std::filesystem::exists(file)) {
    return is_adapter(folder) ? find_unapplied_generation_settings(find_adapter_base(folder))
                              : std::vector<std::string>();
  }
  const auto settings = io::read_json(file);
  if (!settings.is_object()) return {};
  auto keys = io::find_unread_keys(settings, kAppliedGenerationKeys, kHarmlessGenerationKeys);
  std::erase_if(keys, [&settings](const std::string& key) { return is_neutral_value(settings[key]); });
  return keys;
}

}  // namespace vlmtrain::models
