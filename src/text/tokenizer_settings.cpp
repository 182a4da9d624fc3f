#include "text/tokenizer_settings.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/is_file.h"
#include "text/warn_once.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/io/unread_keys.h"

namespace vlmtrain::text {
namespace {

namespace fs = std::filesystem;
using io::HarmlessKey;

constexpr const char* kConfig = "tokenizer_config.json";

/// Keys of tokenizer_config.json that are read here, in outside_token.cpp or in checkpoint_templates.cpp; those that
/// end with _token are read too.
constexpr std::array<std::string_view, 7> kReadKeys{"chat_template",
                                                    "added_tokens_decoder",
                                                    "extra_special_tokens",
                                                    "additional_special_tokens",
                                                    "split_special_tokens",
                                                    "add_prefix_space",
                                                    "auto_map"};

constexpr std::string_view kPostProcessorWins = "transformers takes tokenizer.json's post-processor instead";
constexpr std::string_view kOnlyNames = "names a class, a file or a place";
constexpr std::string_view kNeverTruncated = "no sample is cut";
constexpr std::string_view kNeverPadded = "nothing is padded";
constexpr std::string_view kOnlyDecoding = "changes decoded text alone, and in transformers for BPE not even that";
constexpr std::string_view kOtherTokenizers = "of vocabularies in other files, which tokenizer.json replaces";
constexpr std::string_view kReadFromConfig = "config.json has it, and is read";
constexpr std::string_view kOtherTasks = "of tasks other than training";

constexpr std::array kHarmlessKeys{
    HarmlessKey{"add_bos_token", kPostProcessorWins},
    HarmlessKey{"add_eos_token", kPostProcessorWins},
    HarmlessKey{"tokenizer_class", kOnlyNames},
    HarmlessKey{"processor_class", kOnlyNames},
    HarmlessKey{"name_or_path", kOnlyNames},
    HarmlessKey{"_name_or_path", kOnlyNames},
    HarmlessKey{"tokenizer_file", kOnlyNames},
    HarmlessKey{"vocab_file", kOnlyNames},
    HarmlessKey{"merges_file", kOnlyNames},
    HarmlessKey{"tokenizer_type", kOnlyNames},
    HarmlessKey{"special_tokens_map_file", kOnlyNames},
    HarmlessKey{"backend", kOnlyNames},
    HarmlessKey{"is_local", kOnlyNames},
    HarmlessKey{"local_files_only", kOnlyNames},
    HarmlessKey{"use_fast", kOnlyNames},
    HarmlessKey{"from_slow", kOnlyNames},
    HarmlessKey{"trust_remote_code", kOnlyNames},
    HarmlessKey{"device_map", kOnlyNames},
    HarmlessKey{"torch_dtype", kOnlyNames},
    HarmlessKey{"dtype", kOnlyNames},
    HarmlessKey{"transformers_version", kOnlyNames},
    HarmlessKey{"_commit_hash", kOnlyNames},
    HarmlessKey{"model_max_length", kNeverTruncated},
    HarmlessKey{"max_len", kNeverTruncated},
    HarmlessKey{"max_length", kNeverTruncated},
    HarmlessKey{"truncation", kNeverTruncated},
    HarmlessKey{"truncation_side", kNeverTruncated},
    HarmlessKey{"truncation_strategy", kNeverTruncated},
    HarmlessKey{"stride", kNeverTruncated},
    HarmlessKey{"padding", kNeverPadded},
    HarmlessKey{"padding_side", kNeverPadded},
    HarmlessKey{"pad_to_multiple_of", kNeverPadded},
    HarmlessKey{"pad_token_type_id", kNeverPadded},
    HarmlessKey{"clean_up_tokenization_spaces", kOnlyDecoding},
    HarmlessKey{"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", kOnlyDecoding},
    HarmlessKey{"spaces_between_special_tokens", kOnlyDecoding},
    HarmlessKey{"skip_special_tokens", kOnlyDecoding},
    HarmlessKey{"errors", kOnlyDecoding},
    HarmlessKey{"legacy", kOtherTokenizers},
    HarmlessKey{"sp_model_kwargs", kOtherTokenizers},
    HarmlessKey{"use_default_system_prompt", kOtherTokenizers},
    HarmlessKey{"do_lower_case", kOtherTokenizers},
    HarmlessKey{"strip_accents", kOtherTokenizers},
    HarmlessKey{"tokenize_chinese_chars", kOtherTokenizers},
    HarmlessKey{"remove_space", kOtherTokenizers},
    HarmlessKey{"keep_accents", kOtherTokenizers},
    HarmlessKey{"extra_ids", kOtherTokenizers},
    HarmlessKey{"bos_token_id", kReadFromConfig},
    HarmlessKey{"eos_token_id", kReadFromConfig},
    HarmlessKey{"pad_token_id", kReadFromConfig},
    HarmlessKey{"unk_token_id", kReadFromConfig},
    HarmlessKey{"image_token_id", kReadFromConfig},
    HarmlessKey{"video_token_id", kReadFromConfig},
    HarmlessKey{"model_input_names", kOtherTasks},
    HarmlessKey{"return_token_type_ids", kOtherTasks},
    HarmlessKey{"return_tensors", kOtherTasks},
    HarmlessKey{"verbose", kOtherTasks},
    HarmlessKey{"response_schema", kOtherTasks},
    HarmlessKey{"response_template", kOtherTasks},
    HarmlessKey{"chat_control_tokens", kOtherTasks}};

void warn_unread_keys(const nlohmann::json& config, const std::string& source) {
  std::vector<std::string> unread_keys = io::find_unread_keys(config, kReadKeys, kHarmlessKeys);
  // false and 0 mean the same as an absent key, and a name of a token is read.
  std::erase_if(unread_keys, [&config](const std::string& key) {
    return key.ends_with("_token") || config[key] == false || config[key] == 0;
  });
  if (unread_keys.empty()) return;
  warn_once(fmt::format("{}: {} {} not read; compare the tokens with transformers' (docs/chat-templates.md)", source,
                        fmt::join(unread_keys, ", "), unread_keys.size() == 1 ? "is" : "are"));
}

/// Whether a text gets a space in front, as tokenizer.json has it.
bool adds_prefix_space(const Tokenizer& tokenizer) {
  const auto ids = tokenizer.encode("a").ids;
  return !ids.empty() && tokenizer.id_to_token(ids.front()) != "a";
}

void warn_prefix_space(const nlohmann::json& config, const Tokenizer& tokenizer, const std::string& source) {
  const auto setting = config.find("add_prefix_space");
  if (setting == config.end() || !setting->is_boolean() || *setting == adds_prefix_space(tokenizer)) return;
  warn_once(
      fmt::format("{}: add_prefix_space is {}, and tokenizer.json does the opposite, which is what is done here; some "
                  "tokenizers of "
                  "transformers follow the former: make both agree",
                  source, io::to_json_string(*setting)));
}

/// Tokens of tokenizer.json that classes which make their tokenizer of added_tokens_decoder do not have.
void warn_incomplete_decoder(const nlohmann::json& config, const Tokenizer& tokenizer,
                             const ExternalTokens& external_tokens, const std::string& source) {
  const auto tokenizer_class = config.find("tokenizer_class");
  if (!external_tokens.has_decoder || tokenizer_class == config.end() || !tokenizer_class->is_string()) return;
  const auto& class_name = tokenizer_class->get_ref<const std::string&>();
  if (class_name == "PreTrainedTokenizerFast" || class_name == "TokenizersBackend") return;
  std::set<std::string_view> known_tokens;
  for (const ExternalToken& token : external_tokens.tokens) known_tokens.insert(token.content);
  std::vector<std::string_view> missing_tokens = tokenizer.added_tokens();
  std::erase_if(missing_tokens, [&known_tokens](std::string_view token) { return known_tokens.contains(token); });
  if (missing_tokens.empty()) return;
  warn_once(fmt::format(
      "{}: added_tokens_decoder lacks {} of tokenizer.json, such as \"{}\"; transformers' {} reads it alone, and would "
      "split them: add them there",
      source, missing_tokens.size() == 1 ? "a token" : fmt::format("{} tokens", missing_tokens.size()),
      missing_tokens.front(), class_name));
}

void warn_ignored_tokens(const Tokenizer& tokenizer, const ExternalTokens& external_tokens) {
  for (const ExternalToken& token : external_tokens.ignored_tokens) {
    if (tokenizer.token_to_id(token.content)) continue;
    warn_once(fmt::format(
        "{}: names \"{}\", which tokenizer.json lacks, and is not read here nor by transformers, since "
        "tokenizer_config.json has {}; add the token there, or it is split",
        token.source, token.content, external_tokens.has_decoder ? "added_tokens_decoder" : "extra_special_tokens"));
    return;
  }
}

}  // namespace

void check_tokenizer_settings(const fs::path& folder, const Tokenizer& tokenizer,
                              const ExternalTokens& external_tokens) {
  warn_ignored_tokens(tokenizer, external_tokens);
  const fs::path file = folder / kConfig;
  if (!is_file(file)) return;
  const std::string source = file.string();
  const auto config = io::read_json(file);
  if (io::get_or<bool>(config, "split_special_tokens", false, source)) {
    throw data_error(
        "{}: split_special_tokens is true, which writes special tokens in letters, those of images too; remove it",
        source);
  }
  if (const auto auto_map = config.find("auto_map"); auto_map != config.end() && !io::is_empty_value(*auto_map)) {
    warn_once(fmt::format(
        "{}: auto_map names code of the checkpoint's own, which is not run; tokenizer.json is what is read", source));
  }
  warn_prefix_space(config, tokenizer, source);
  warn_incomplete_decoder(config, tokenizer, external_tokens, source);
  warn_unread_keys(config, source);
}

}  // namespace vlmtrain::text
