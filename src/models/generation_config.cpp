#include "vlmtrain/models/generation_config.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/text/template_source.h"

namespace vlmtrain::models {

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
