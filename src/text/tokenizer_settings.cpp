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
constexpr std::array<std::string_view, 7> kRead{"chat_template",
                                                "added_tokens_decoder",
                                                "extra_special_tokens",
                                                "additional_special_tokens",
                                                "split_special_tokens",
                                                "add_prefix_space",
                                                "auto_map"};

constexpr std::string_view kOfFile = "transformers takes tokenizer.json's post-processor instead";
constexpr std::string_view kNames = "names a class, a file or a place";
constexpr std::string_view kNeverCut = "no sample is cut";
constexpr std::string_view kNeverPadded = "nothing is padded";
constexpr std::string_view kDecoding = "changes decoded text alone, and in transformers for BPE not even that";
constexpr std::string_view kOtherModels = "of vocabularies in other files, which tokenizer.json replaces";
constexpr std::string_view kInConfig = "config.json has it, and is read";
constexpr std::string_view kOtherUse = "of tasks other than training";

constexpr std::array kHarmless{
    HarmlessKey{"add_bos_token", kOfFile},
    HarmlessKey{"add_eos_token", kOfFile},
    HarmlessKey{"tokenizer_class", kNames},
    HarmlessKey{"processor_class", kNames},
    HarmlessKey{"name_or_path", kNames},
    HarmlessKey{"_name_or_path", kNames},
    HarmlessKey{"tokenizer_file", kNames},
    HarmlessKey{"vocab_file", kNames},
    HarmlessKey{"merges_file", kNames},
    HarmlessKey{"tokenizer_type", kNames},
    HarmlessKey{"special_tokens_map_file", kNames},
    HarmlessKey{"backend", kNames},
    HarmlessKey{"is_local", kNames},
    HarmlessKey{"local_files_only", kNames},
    HarmlessKey{"use_fast", kNames},
    HarmlessKey{"from_slow", kNames},
    HarmlessKey{"trust_remote_code", kNames},
    HarmlessKey{"device_map", kNames},
    HarmlessKey{"torch_dtype", kNames},
    HarmlessKey{"dtype", kNames},
    HarmlessKey{"transformers_version", kNames},
    HarmlessKey{"_commit_hash", kNames},
    HarmlessKey{"model_max_length", kNeverCut},
    HarmlessKey{"max_len", kNeverCut},
    HarmlessKey{"max_length", kNeverCut},
    HarmlessKey{"truncation", kNeverCut},
    HarmlessKey{"truncation_side", kNeverCut},
    HarmlessKey{"truncation_strategy", kNeverCut},
    HarmlessKey{"stride", kNeverCut},
    HarmlessKey{"padding", kNeverPadded},
    HarmlessKey{"padding_side", kNeverPadded},
    HarmlessKey{"pad_to_multiple_of", kNeverPadded},
    HarmlessKey{"pad_token_type_id", kNeverPadded},
    HarmlessKey{"clean_up_tokenization_spaces", kDecoding},
    HarmlessKey{"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", kDecoding},
    HarmlessKey{"spaces_between_special_tokens", kDecoding},
    HarmlessKey{"skip_special_tokens", kDecoding},
    HarmlessKey{"errors", kDecoding},
    HarmlessKey{"legacy", kOtherModels},
    HarmlessKey{"sp_model_kwargs", kOtherModels},
    HarmlessKey{"use_default_system_prompt", kOtherModels},
    HarmlessKey{"do_lower_case", kOtherModels},
    HarmlessKey{"strip_accents", kOtherModels},
    HarmlessKey{"tokenize_chinese_chars", kOtherModels},
    HarmlessKey{"remove_space", kOtherModels},
    HarmlessKey{"keep_accents", kOtherModels},
    HarmlessKey{"extra_ids", kOtherModels},
    HarmlessKey{"bos_token_id", kInConfig},
    HarmlessKey{"eos_token_id", kInConfig},
    HarmlessKey{"pad_token_id", kInConfig},
    HarmlessKey{"unk_token_id", kInConfig},
    HarmlessKey{"image_token_id", kInConfig},
    HarmlessKey{"video_token_id", kInConfig},
    HarmlessKey{"model_input_names", kOtherUse},
    HarmlessKey{"return_token_type_ids", kOtherUse},
    HarmlessKey{"return_tensors", kOtherUse},
    HarmlessKey{"verbose", kOtherUse},
    HarmlessKey{"response_schema", kOtherUse},
    HarmlessKey{"response_template", kOtherUse},
    HarmlessKey{"chat_control_tokens", kOtherUse}};

void report_unread_keys(const nlohmann::json& config, const std::string& source) {
  std::vector<std::string> unread = io::unread_keys(config, kRead, kHarmless);
  // false and 0 mean the same as an absent key, and a name of a token is read.
  std::erase_if(unread, [&config](const std::string& key) {
    return key.ends_with("_token") || config[key] == false || config[key] == 0;
  });
  if (unread.empty()) return;
  warn_once(fmt::format("{}: {} {} not read; compare the tokens with transformers' (docs/chat-templates.md)", source,
                        fmt::join(unread, ", "), unread.size() == 1 ? "is" : "are"));
}

/// Whether a text gets a space in front, as tokenizer.json has it.
bool puts_space_first(const Tokenizer& tokenizer) {
  const auto ids = tokenizer.encode("a").ids;
  return !ids.empty() && tokenizer.id_to_token(ids.front()) != "a";
}

void report_prefix_space(const nlohmann::json& config, const Tokenizer& tokenizer, const std::string& source) {
  const auto wanted = config.find("add_prefix_space");
  if (wanted == config.end() || !wanted->is_boolean() || *wanted == puts_space_first(tokenizer)) return;
  warn_once(
      fmt::format("{}: add_prefix_space is {}, and tokenizer.json does the opposite, which is what is done here; some "
                  "tokenizers of "
                  "transformers follow the former: make both agree",
                  source, io::json_text(*wanted)));
}

/// Tokens of tokenizer.json that classes which make their tokenizer of added_tokens_decoder do not have.
void report_incomplete_decoder(const nlohmann::json& config, const Tokenizer& tokenizer, const OutsideTokens& outside,
                               const std::string& source) {
  const auto of_class = config.find("tokenizer_class");
  if (!outside.has_decoder || of_class == config.end() || !of_class->is_string()) return;
  const auto& name = of_class->get_ref<const std::string&>();
  if (name == "PreTrainedTokenizerFast" || name == "TokenizersBackend") return;
  std::set<std::string_view> known;
  for (const OutsideToken& token : outside.tokens) known.insert(token.content);
  std::vector<std::string_view> missing = tokenizer.added_tokens();
  std::erase_if(missing, [&known](std::string_view token) { return known.contains(token); });
  if (missing.empty()) return;
  warn_once(fmt::format(
      "{}: added_tokens_decoder lacks {} of tokenizer.json, such as \"{}\"; transformers' {} reads it alone, and would "
      "split them: add them there",
      source, missing.size() == 1 ? "a token" : fmt::format("{} tokens", missing.size()), missing.front(), name));
}

void report_unread_tokens(const Tokenizer& tokenizer, const OutsideTokens& outside) {
  for (const OutsideToken& token : outside.unread) {
    if (tokenizer.token_to_id(token.content)) continue;
    warn_once(fmt::format(
        "{}: names \"{}\", which tokenizer.json lacks, and is not read here nor by transformers, since "
        "tokenizer_config.json has {}; add the token there, or it is split",
        token.source, token.content, outside.has_decoder ? "added_tokens_decoder" : "extra_special_tokens"));
    return;
  }
}

}  // namespace

void check_tokenizer_settings(const fs::path& folder, const Tokenizer& tokenizer, const OutsideTokens& outside) {
  report_unread_tokens(tokenizer, outside);
  const fs::path file = folder / kConfig;
  if (!is_file(file)) return;
  const std::string source = file.string();
  const auto config = io::read_json(file);
  if (io::get_or<bool>(config, "split_special_tokens", false, source)) {
    throw data_error(
        "{}: split_special_tokens is true, which writes special tokens in letters, those of images too; remove it",
        source);
  }
  if (const auto code = config.find("auto_map"); code != config.end() && !io::is_empty_value(*code)) {
    warn_once(fmt::format(
        "{}: auto_map names code of the checkpoint's own, which is not run; tokenizer.json is what is read", source));
  }
  report_prefix_space(config, tokenizer, source);
  report_incomplete_decoder(config, tokenizer, outside, source);
  report_unread_keys(config, source);
}

}  // namespace vlmtrain::text
