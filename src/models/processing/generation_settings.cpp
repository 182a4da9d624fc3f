#include "vlmtrain/models/generation_settings.h"

#include <array>
#include <string_view>

#include "vlmtrain/io/json.h"
#include "vlmtrain/io/unread_keys.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::models {

namespace {

using io::HarmlessKey;

constexpr std::array<std::string_view, 1> kApplied{"eos_token_id"};

constexpr std::string_view kDrawn = "of drawn answers: --temperature, --top-k and --top-p set how they are drawn";
constexpr std::string_view kLimit = "--max-new-tokens is the limit";
constexpr std::string_view kNoPadding = "nothing is padded, and the prompt has its own start";
constexpr std::string_view kHow = "changes how answers are computed or returned, not what they are";
constexpr std::string_view kBeams = "of beam search, which num_beams turns on";

constexpr std::array kHarmlessSettings{HarmlessKey{"do_sample", kDrawn},
                                       HarmlessKey{"temperature", kDrawn},
                                       HarmlessKey{"top_k", kDrawn},
                                       HarmlessKey{"top_p", kDrawn},
                                       HarmlessKey{"min_p", kDrawn},
                                       HarmlessKey{"top_h", kDrawn},
                                       HarmlessKey{"typical_p", kDrawn},
                                       HarmlessKey{"epsilon_cutoff", kDrawn},
                                       HarmlessKey{"eta_cutoff", kDrawn},
                                       HarmlessKey{"max_length", kLimit},
                                       HarmlessKey{"max_new_tokens", kLimit},
                                       HarmlessKey{"bos_token_id", kNoPadding},
                                       HarmlessKey{"pad_token_id", kNoPadding},
                                       HarmlessKey{"decoder_start_token_id", kNoPadding},
                                       HarmlessKey{"length_penalty", kBeams},
                                       HarmlessKey{"early_stopping", kBeams},
                                       HarmlessKey{"num_beam_groups", kBeams},
                                       HarmlessKey{"diversity_penalty", kBeams},
                                       HarmlessKey{"transformers_version", kHow},
                                       HarmlessKey{"_from_model_config", kHow},
                                       HarmlessKey{"use_cache", kHow},
                                       HarmlessKey{"cache_implementation", kHow},
                                       HarmlessKey{"cache_config", kHow},
                                       HarmlessKey{"max_cache_len", kHow},
                                       HarmlessKey{"return_legacy_cache", kHow},
                                       HarmlessKey{"return_dict_in_generate", kHow},
                                       HarmlessKey{"num_return_sequences", kHow},
                                       HarmlessKey{"output_attentions", kHow},
                                       HarmlessKey{"output_hidden_states", kHow},
                                       HarmlessKey{"output_scores", kHow},
                                       HarmlessKey{"output_logits", kHow},
                                       HarmlessKey{"remove_invalid_values", kHow},
                                       HarmlessKey{"renormalize_logits", kHow},
                                       HarmlessKey{"compile_config", kHow},
                                       HarmlessKey{"disable_compile", kHow},
                                       HarmlessKey{"prefill_chunk_size", kHow},
                                       HarmlessKey{"low_memory", kHow},
                                       HarmlessKey{"is_assistant", kHow},
                                       HarmlessKey{"num_assistant_tokens", kHow},
                                       HarmlessKey{"num_assistant_tokens_schedule", kHow},
                                       HarmlessKey{"assistant_confidence_threshold", kHow},
                                       HarmlessKey{"assistant_early_exit", kHow},
                                       HarmlessKey{"assistant_lookbehind", kHow},
                                       HarmlessKey{"target_lookbehind", kHow},
                                       HarmlessKey{"prompt_lookup_num_tokens", kHow},
                                       HarmlessKey{"max_matching_ngram_size", kHow},
                                       HarmlessKey{"transformers.js_config", kHow}};

/// Values with which transformers' generate does nothing: the defaults of its penalties and counts.
bool is_neutral(const nlohmann::json& value) {
  return value == false || value == 0 || value == 1;
}

}  // namespace

std::vector<std::string> unapplied_generation_settings(const std::filesystem::path& folder) {
  const auto file = folder / "generation_config.json";
  if (!std::filesystem::exists(file)) {
    return is_adapter(folder) ? unapplied_generation_settings(base_of_adapter(folder)) : std::vector<std::string>();
  }
  const auto settings = io::read_json(file);
  if (!settings.is_object()) return {};
  auto keys = io::unread_keys(settings, kApplied, kHarmlessSettings);
  std::erase_if(keys, [&settings](const std::string& key) { return is_neutral(settings[key]); });
  return keys;
}

}  // namespace vlmtrain::models
