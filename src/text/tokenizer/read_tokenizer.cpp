#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "text/tokenizer/external_tokens.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {
namespace {

namespace fs = std::filesystem;
using io::HarmlessKey;

constexpr const char* kTokenizerConfigFile = "tokenizer_config.json";

/// Keys of tokenizer_config.json that read_tokenizer.cpp, external_tokens.cpp and
/// chat_template.cpp read. They also read all keys that end with _token.
constexpr std::array<std::string_view, 7> kSupportedTokenizerConfigKeys{"chat_template",
                                                                        "added_tokens_decoder",
                                                                        "extra_special_tokens",
                                                                        "additional_special_tokens",
                                                                        "split_special_tokens",
                                                                        "add_prefix_space",
                                                                        "auto_map"};

// Reasons why keys of tokenizer_config.json can be ignored.
constexpr std::string_view kPostProcessorReason = "transformers uses tokenizer.json's post-processor instead";
constexpr std::string_view kClassOrFileNameReason = "names a class or a file";
constexpr std::string_view kNeverTruncatedReason = "samples are never truncated";
constexpr std::string_view kNeverPaddedReason = "samples are never padded";
constexpr std::string_view kDecodingOnlyReason = "changes decoded text only; transformers ignores it for BPE";
constexpr std::string_view kOtherVocabularyFilesReason =
    "for vocabularies in other files, which tokenizer.json replaces";
constexpr std::string_view kReadFromConfigReason = "read from config.json";
constexpr std::string_view kOtherTasksReason = "for tasks other than training";

constexpr std::array kHarmlessKeys{
    HarmlessKey{"add_bos_token", kPostProcessorReason},
    HarmlessKey{"add_eos_token", kPostProcessorReason},
    HarmlessKey{"tokenizer_class", kClassOrFileNameReason},
    HarmlessKey{"processor_class", kClassOrFileNameReason},
    HarmlessKey{"name_or_path", kClassOrFileNameReason},
    HarmlessKey{"_name_or_path", kClassOrFileNameReason},
    HarmlessKey{"tokenizer_file", kClassOrFileNameReason},
    HarmlessKey{"vocab_file", kClassOrFileNameReason},
    HarmlessKey{"merges_file", kClassOrFileNameReason},
    HarmlessKey{"tokenizer_type", kClassOrFileNameReason},
    HarmlessKey{"special_tokens_map_file", kClassOrFileNameReason},
    HarmlessKey{"backend", kClassOrFileNameReason},
    HarmlessKey{"is_local", kClassOrFileNameReason},
    HarmlessKey{"local_files_only", kClassOrFileNameReason},
    HarmlessKey{"use_fast", kClassOrFileNameReason},
    HarmlessKey{"from_slow", kClassOrFileNameReason},
    HarmlessKey{"trust_remote_code", kClassOrFileNameReason},
    HarmlessKey{"device_map", kClassOrFileNameReason},
    HarmlessKey{"torch_dtype", kClassOrFileNameReason},
    HarmlessKey{"dtype", kClassOrFileNameReason},
    HarmlessKey{"transformers_version", kClassOrFileNameReason},
    HarmlessKey{"_commit_hash", kClassOrFileNameReason},
    HarmlessKey{"model_max_length", kNeverTruncatedReason},
    HarmlessKey{"max_len", kNeverTruncatedReason},
    HarmlessKey{"max_length", kNeverTruncatedReason},
    HarmlessKey{"truncation", kNeverTruncatedReason},
    HarmlessKey{"truncation_side", kNeverTruncatedReason},
    HarmlessKey{"truncation_strategy", kNeverTruncatedReason},
    HarmlessKey{"stride", kNeverTruncatedReason},
    HarmlessKey{"padding", kNeverPaddedReason},
    HarmlessKey{"padding_side", kNeverPaddedReason},
    HarmlessKey{"pad_to_multiple_of", kNeverPaddedReason},
    HarmlessKey{"pad_token_type_id", kNeverPaddedReason},
    HarmlessKey{"clean_up_tokenization_spaces", kDecodingOnlyReason},
    HarmlessKey{"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", kDecodingOnlyReason},
    HarmlessKey{"spaces_between_special_tokens", kDecodingOnlyReason},
    HarmlessKey{"skip_special_tokens", kDecodingOnlyReason},
    HarmlessKey{"errors", kDecodingOnlyReason},
    HarmlessKey{"legacy", kOtherVocabularyFilesReason},
    HarmlessKey{"sp_model_kwargs", kOtherVocabularyFilesReason},
    HarmlessKey{"use_default_system_prompt", kOtherVocabularyFilesReason},
    HarmlessKey{"do_lower_case", kOtherVocabularyFilesReason},
    HarmlessKey{"strip_accents", kOtherVocabularyFilesReason},
    HarmlessKey{"tokenize_chinese_chars", kOtherVocabularyFilesReason},
    HarmlessKey{"remove_space", kOtherVocabularyFilesReason},
    HarmlessKey{"keep_accents", kOtherVocabularyFilesReason},
    HarmlessKey{"extra_ids", kOtherVocabularyFilesReason},
    HarmlessKey{"bos_token_id", kReadFromConfigReason},
    HarmlessKey{"eos_token_id", kReadFromConfigReason},
    HarmlessKey{"pad_token_id", kReadFromConfigReason},
    HarmlessKey{"unk_token_id", kReadFromConfigReason},
    HarmlessKey{"image_token_id", kReadFromConfigReason},
    HarmlessKey{"video_token_id", kReadFromConfigReason},
    HarmlessKey{"model_input_names", kOtherTasksReason},
    HarmlessKey{"return_token_type_ids", kOtherTasksReason},
    HarmlessKey{"return_tensors", kOtherTasksReason},
    HarmlessKey{"verbose", kOtherTasksReason},
    HarmlessKey{"response_schema", kOtherTasksReason},
    HarmlessKey{"response_template", kOtherTasksReason},
    HarmlessKey{"chat_control_tokens", kOtherTasksReason}};

/// Logs a warning about keys that are not supported and may change tokens.
void warn_about_unread_keys(const nlohmann::json& config, const std::string& source) {
  std::vector<std::string> unread_keys = io::find_unread_keys(config, kSupportedTokenizerConfigKeys, kHarmlessKeys);
  // false and 0 mean the same as a missing key.
  std::erase_if(unread_keys, [&config](const std::string& key) {
    return key.ends_with("_token") || config[key] == false || config[key] == 0;
  });
  if (unread_keys.empty()) return;
  warn_once(fmt::format("{}: {} {} ignored; compare the tokens with transformers' (docs/reference/chat-templates.md)",
                        source, fmt::join(unread_keys, ", "), unread_keys.size() == 1 ? "is" : "are"));
}

/// Returns whether the tokenizer adds a space before a text.
bool adds_prefix_space(const Tokenizer& tokenizer) {
  const auto ids = tokenizer.encode("a").ids;
  return !ids.empty() && tokenizer.id_to_token(ids.front()) != "a";
}

/// Logs a warning if add_prefix_space contradicts tokenizer.json.
void warn_about_prefix_space(const nlohmann::json& config, const Tokenizer& tokenizer, const std::string& source) {
  const auto prefix_space_setting = config.find("add_prefix_space");
  if (prefix_space_setting == config.end() || !prefix_space_setting->is_boolean() ||
      *prefix_space_setting == adds_prefix_space(tokenizer))
    return;
  warn_once(fmt::format(
      "{}: add_prefix_space is {}, but tokenizer.json does the opposite and takes precedence; some tokenizers "
      "of transformers use add_prefix_space; make both files agree",
      source, io::to_json_string(*prefix_space_setting)));
}

/// Logs a warning if added_tokens_decoder lacks tokens of tokenizer.json. Tokenizer classes of
/// transformers that read only added_tokens_decoder would split these tokens.
void warn_about_undeclared_added_tokens(const nlohmann::json& config, const Tokenizer& tokenizer,
                                        const ExternalTokens& external_tokens, const std::string& source) {
  const auto tokenizer_class = config.find("tokenizer_class");
  if (!external_tokens.has_added_tokens_decoder || tokenizer_class == config.end() || !tokenizer_class->is_string())
    return;
  const auto& class_name = tokenizer_class->get_ref<const std::string&>();
  if (class_name == "PreTrainedTokenizerFast" || class_name == "TokenizersBackend") return;
  std::set<std::string_view> external_token_contents;
  for (const ExternalToken& token : external_tokens.tokens) external_token_contents.insert(token.content);
  std::vector<std::string_view> missing_tokens = tokenizer.added_tokens();
  std::erase_if(missing_tokens,
                [&external_token_contents](std::string_view token) { return external_token_contents.contains(token); });
  if (missing_tokens.empty()) return;
  warn_once(
      fmt::format("{}: added_tokens_decoder lacks {} of tokenizer.json, such as \"{}\"; transformers' {} reads only "
                  "added_tokens_decoder and would split them; add them to added_tokens_decoder",
                  source, missing_tokens.size() == 1 ? "a token" : fmt::format("{} tokens", missing_tokens.size()),
                  missing_tokens.front(), class_name));
}

/// Logs a warning about the first token of `ignored_tokens` that the tokenizer lacks.
void warn_about_ignored_tokens(const Tokenizer& tokenizer, const ExternalTokens& external_tokens) {
  for (const ExternalToken& token : external_tokens.ignored_tokens) {
    if (tokenizer.token_to_id(token.content)) continue;
    warn_once(fmt::format(
        "{}: names \"{}\", which tokenizer.json lacks, but vlmtrain and transformers ignore this file, because "
        "tokenizer_config.json has {}; add the token to that key, otherwise it is split",
        token.source, token.content,
        external_tokens.has_added_tokens_decoder ? "added_tokens_decoder" : "extra_special_tokens"));
    return;
  }
}

/// Compares tokenizer_config.json with `tokenizer`, which was read from `folder`. Throws UserError
/// (kBadData) if split_special_tokens is true, because image tokens would be split. Logs warnings
/// about other contradictions.
void check_tokenizer_settings(const fs::path& folder, const Tokenizer& tokenizer,
                              const ExternalTokens& external_tokens) {
  warn_about_ignored_tokens(tokenizer, external_tokens);
  const fs::path file = folder / kTokenizerConfigFile;
  if (!is_file(file)) return;
  const std::string source = file.string();
  const auto config = io::read_json(file);
  if (io::get_or<bool>(config, "split_special_tokens", false, source)) {
    throw data_error("{}: split_special_tokens is true, which splits special tokens, image tokens included; remove it",
                     source);
  }
  if (const auto auto_map = config.find("auto_map"); auto_map != config.end() && !io::is_empty_value(*auto_map)) {
    warn_once(
        fmt::format("{}: auto_map names code in the checkpoint, which is not run; tokenizer.json is used", source));
  }
  warn_about_prefix_space(config, tokenizer, source);
  warn_about_undeclared_added_tokens(config, tokenizer, external_tokens, source);
  warn_about_unread_keys(config, source);
}

constexpr std::string_view kJsonWhiteSpace = " \t\r\n";

/// Returns the offset after the string whose opening quote is at `quote_pos`. This and the
/// following functions REQUIRE valid JSON.
size_t find_json_string_end(std::string_view json, size_t quote_pos) {
  size_t pos = quote_pos + 1;
  while (json[pos] != '"') pos += json[pos] == '\\' ? 2 : 1;
  return pos + 1;
}

/// Returns the offset of the value of `key` in the outermost object, or nothing.
std::optional<size_t> find_json_value_offset(std::string_view json, std::string_view key) {
  const std::string quoted_key = '"' + std::string(key) + '"';
  int64_t depth = 0;
  for (size_t pos = 0; pos < json.size();) {
    if (json[pos] != '"') {
      depth += json[pos] == '{' || json[pos] == '[' ? 1 : 0;
      depth -= json[pos] == '}' || json[pos] == ']' ? 1 : 0;
      ++pos;
      continue;
    }
    const size_t end = find_json_string_end(json, pos);
    const size_t next = json.find_first_not_of(kJsonWhiteSpace, end);
    if (depth == 1 && json.substr(pos, end - pos) == quoted_key && json[next] == ':') {
      return json.find_first_not_of(kJsonWhiteSpace, next + 1);
    }
    pos = end;
  }
  return std::nullopt;
}

/// Returns the offset of the bracket that closes the list or object at `begin`.
size_t find_closing_bracket(std::string_view json, size_t begin) {
  int64_t depth = 0;
  for (size_t pos = begin;;) {
    if (json[pos] == '"') {
      pos = find_json_string_end(json, pos);
      continue;
    }
    depth += json[pos] == '{' || json[pos] == '[' ? 1 : 0;
    depth -= json[pos] == '}' || json[pos] == ']' ? 1 : 0;
    if (depth == 0) return pos;
    ++pos;
  }
}

/// Returns an entry of `added_tokens` as JSON.
std::string make_added_token_entry(const std::string& token, int64_t id) {
  const nlohmann::ordered_json entry{{"id", id},        {"content", token}, {"single_word", false},
                                     {"lstrip", false}, {"rstrip", false},  {"normalized", false},
                                     {"special", false}};
  return io::to_json_string(entry);
}

/// Returns `json` with `entry` appended to the list `added_tokens`, with the white space that
/// precedes its first entry. Edits the text, because writing the parsed document again would change
/// the rest of the file.
std::string insert_added_token_entry(std::string json, const std::string& entry) {
  const auto list_begin = find_json_value_offset(json, "added_tokens");
  if (!list_begin) return json.insert(json.find('{') + 1, "\"added_tokens\":[" + entry + "],");
  const size_t first_entry_begin = json.find_first_not_of(kJsonWhiteSpace, *list_begin + 1);
  if (json[first_entry_begin] == ']') return json.insert(first_entry_begin, entry);
  const std::string separator = json.substr(*list_begin + 1, first_entry_begin - *list_begin - 1);
  const size_t last_entry_end = json.find_last_not_of(kJsonWhiteSpace, find_closing_bracket(json, *list_begin) - 1) + 1;
  return json.insert(last_entry_end, "," + separator + entry);
}

}  // namespace

std::string read_tokenizer_json(const std::filesystem::path& tokenizer_json) {
  static_cast<void>(is_file(tokenizer_json));  // throws if it is a folder or a pipe
  std::ifstream file(tokenizer_json, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    throw data_error("{}: cannot be read ({}); a checkpoint folder must contain tokenizer.json",
                     tokenizer_json.string(), std::generic_category().message(errno));
  }
  return content;
}

Tokenizer read_tokenizer(const std::filesystem::path& folder, std::span<const std::string> extra_special_tokens) {
  const auto file = folder / "tokenizer.json";
  const std::string content = read_tokenizer_json(file);
  ExternalTokens external_tokens = read_external_tokens(folder);
  for (const std::string& token : extra_special_tokens) {
    external_tokens.tokens.push_back({.content = token, .source = (folder / "config.json").string()});
  }
  Tokenizer tokenizer = Tokenizer::from_json_with_external_tokens(content, file.string(), external_tokens.tokens);
  check_tokenizer_settings(folder, tokenizer, external_tokens);
  return tokenizer;
}

AddTokenResult add_token(const std::string& json, const std::string& token, const std::string& source_name) {
  const auto tokenizer = Tokenizer::from_json(json, source_name);
  const auto existing_id = tokenizer.token_to_id(token);
  if (existing_id && tokenizer.encode(token).ids == std::vector<int64_t>{*existing_id}) return {json, *existing_id};
  const int64_t id = existing_id.value_or(tokenizer.vocab_size());
  return {insert_added_token_entry(json, make_added_token_entry(token, id)), id};
}

}  // namespace vlmtrain::text
