#include "text/tokenizer/external_tokens.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <mutex>
#include <set>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// The names of PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES in transformers, in the same
/// order.
constexpr std::array kStandardTokenNames{"bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token"};
constexpr const char* kAddedTokensDecoderKey = "added_tokens_decoder";
constexpr const char* kExtraSpecialTokensKey = "extra_special_tokens";
constexpr const char* kAdditionalSpecialTokensKey = "additional_special_tokens";

/// Returns whether `key` is one of kStandardTokenNames.
bool is_standard_token_name(std::string_view key) {
  return std::ranges::find(kStandardTokenNames, key) != kStandardTokenNames.end();
}

/// Parses a token: a string, or an object with the properties of an added token. Returns nothing
/// for other values.
std::optional<ExternalToken> parse_external_token(const Json& value, const std::string& source) {
  if (value.is_string()) return ExternalToken{.content = value.get<std::string>(), .source = source};
  if (!value.is_object() || !value.contains("content")) return std::nullopt;
  ExternalToken token{.content = io::get<std::string>(value, "content", source), .source = source};
  token.single_word = io::get_or<bool>(value, "single_word", false, source);
  token.lstrip = io::get_or<bool>(value, "lstrip", false, source);
  token.rstrip = io::get_or<bool>(value, "rstrip", false, source);
  token.special = io::get_or<bool>(value, "special", true, source);
  token.normalized = io::get_or<bool>(value, "normalized", !token.special, source);
  return token;
}

/// Parses a token as parse_external_token(). Throws UserError (bad data) for other values.
ExternalToken parse_required_token(const Json& value, const std::string& source) {
  auto token = parse_external_token(value, source);
  if (!token) throw data_error("{}: {} is not a token; use a string", source, io::make_json_excerpt(value));
  return std::move(*token);
}

/// Parses a key of added_tokens_decoder. Throws UserError (bad data) unless it is an id.
int64_t parse_token_id(const std::string& key, const std::string& source) {
  int64_t id = -1;
  const auto [end, error_code] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error_code != std::errc() || end != key.data() + key.size() || id < 0) {
    throw data_error("{}: \"{}\" is not the id of a token; use an integer of at least 0", source, key);
  }
  return id;
}

/// A JSON file that holds an object. `json` does not preserve the order of keys, because parsing
/// into nlohmann::ordered_json is slow for thousands of tokens. list_keys_in_file_order() recovers
/// the order from `text` where it matters.
struct JsonObjectFile {
  std::string text;
  Json json = Json::object();

  /// Returns the keys of `object`, a part of `json`, in the order of their first occurrence in the
  /// file.
  std::vector<std::string> list_keys_in_file_order(const Json& object) const {
    std::vector<std::pair<size_t, std::string>> offsets;
    for (const auto& [key, value] : object.items()) offsets.emplace_back(text.find('"' + key + '"'), key);
    std::ranges::sort(offsets);
    std::vector<std::string> keys;
    keys.reserve(offsets.size());
    for (auto& [offset, key] : offsets) keys.push_back(std::move(key));
    return keys;
  }
};

/// Reads a file that must hold a JSON object. Returns an empty object if the file does not exist.
/// Throws UserError (bad data) for other content.
JsonObjectFile read_json_object_file(const fs::path& file) {
  JsonObjectFile json_file;
  if (!is_file(file)) return json_file;
  json_file.text = io::read_file(file);
  json_file.json = io::parse_json(json_file.text, file.string());
  if (!json_file.json.is_object()) {
    throw data_error("{}: is {}, not an object; use the checkpoint's own file", file.string(),
                     io::make_json_excerpt(json_file.json));
  }
  return json_file;
}

/// Parses added_tokens_decoder. Returns its tokens by ascending id.
std::vector<ExternalToken> parse_added_tokens_decoder(const Json& decoder, const std::string& source) {
  if (!decoder.is_object())
    throw data_error("{}: must be an object {{id: token}}; use the checkpoint's own file", source);
  std::map<int64_t, ExternalToken> tokens_by_id;
  for (const auto& [key, value] : decoder.items()) {
    ExternalToken token = parse_required_token(value, source);
    if (value.is_object() && !value.contains("special")) token.special = false;  // AddedToken's default in `tokenizers`
    if (value.is_object() && !value.contains("normalized")) token.normalized = !token.special;
    token.id = parse_token_id(key, source);
    token.overrides_tokenizer_json = true;
    tokens_by_id.insert_or_assign(*token.id, std::move(token));
  }
  std::vector<ExternalToken> tokens;
  tokens.reserve(tokens_by_id.size());
  for (auto& [id, token] : tokens_by_id) tokens.push_back(std::move(token));
  return tokens;
}

/// Parses a list of tokens. Drops tokens with empty content.
std::vector<ExternalToken> parse_token_list(const Json& list, const std::string& source) {
  std::vector<ExternalToken> tokens;
  for (const auto& value : list) {
    ExternalToken token = parse_required_token(value, source);
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

/// A reader of the files next to tokenizer.json; see read_external_tokens() for their order.
class ExternalTokenReader {
 public:
  explicit ExternalTokenReader(const fs::path& folder)
      : folder_(folder),
        tokenizer_config_file_(read_json_object_file(folder / kTokenizerConfigFileName)),
        special_tokens_map_file_(read_json_object_file(folder / kSpecialTokensMapFileName)),
        tokenizer_config_(tokenizer_config_file_.json),
        special_tokens_map_(special_tokens_map_file_.json) {}

  ExternalTokens read_tokens() {
    external_tokens_.has_added_tokens_decoder =
        tokenizer_config_.contains(kAddedTokensDecoderKey) && !tokenizer_config_[kAddedTokensDecoderKey].is_null();
    read_added_tokens();
    read_named_tokens();
    read_token_lists();
    return std::move(external_tokens_);
  }

 private:
  static constexpr const char* kTokenizerConfigFileName = "tokenizer_config.json";
  static constexpr const char* kSpecialTokensMapFileName = "special_tokens_map.json";

  std::string format_token_source(const char* file, const std::string& key) const {
    return fmt::format("{}: {}", (folder_ / file).string(), key);
  }

  /// Reads added_tokens_decoder, and added_tokens.json, which is ignored if the key exists.
  void read_added_tokens() {
    if (external_tokens_.has_added_tokens_decoder)
      external_tokens_.tokens =
          parse_added_tokens_decoder(tokenizer_config_[kAddedTokensDecoderKey],
                                     format_token_source(kTokenizerConfigFileName, kAddedTokensDecoderKey));
    const fs::path file = folder_ / "added_tokens.json";
    if (!is_file(file)) return;
    const Json ids = io::read_json(file);
    if (!ids.is_object())
      throw data_error("{}: must be an object {{token: id}}; use the checkpoint's own file", file.string());
    std::vector<ExternalToken> added_tokens;
    for (const auto& [content, id] : ids.items()) {
      ExternalToken token{.content = content, .source = file.string()};
      token.id = io::get<int64_t>(ids, content, file.string());
      token.special = is_special(content);
      token.normalized = !token.special;
      if (!content.empty()) added_tokens.push_back(std::move(token));
    }
    std::ranges::sort(added_tokens, {}, [](const ExternalToken& token) { return *token.id; });
    auto& destination =
        external_tokens_.has_added_tokens_decoder ? external_tokens_.ignored_tokens : external_tokens_.tokens;
    destination.insert(destination.end(), added_tokens.begin(), added_tokens.end());
  }

  /// Returns whether a named token or a list of special tokens has this content.
  bool is_special(const std::string& content) const {
    const auto has_content = [&content](const Json& value) {
      const auto token = parse_external_token(value, "");
      return token && token->content == content;
    };
    for (const Json* json : {&tokenizer_config_, &special_tokens_map_}) {
      for (const auto& [key, value] : json->items()) {
        if (is_standard_token_name(key) && has_content(value)) return true;
        if ((key == kExtraSpecialTokensKey || key == kAdditionalSpecialTokensKey) && value.is_array() &&
            std::ranges::any_of(value, has_content))
          return true;
      }
    }
    return false;
  }

  /// Sets the named token `key` if `value` is a token. A later file replaces the value of an
  /// earlier one, but the position of the first remains.
  void set_named_token(const std::string& key, const Json& value, const char* file) {
    const auto token = parse_external_token(value, format_token_source(file, key));
    if (!token || token->content.empty()) return;
    const auto existing_token = std::ranges::find(named_tokens_, key, &std::pair<std::string, ExternalToken>::first);
    if (existing_token == named_tokens_.end()) {
      named_tokens_.emplace_back(key, *token);
    } else {
      existing_token->second = *token;
    }
  }

  /// Adds the tokens with model-specific names, such as image_token.
  void add_model_specific_tokens(const JsonObjectFile& json_file, const char* file) {
    Json model_specific_tokens = Json::object();
    for (const auto& [key, value] : json_file.json.items()) {
      if (!is_standard_token_name(key) && key.ends_with("_token") && value.is_string())
        model_specific_tokens[key] = value;
    }
    for (const std::string& key : json_file.list_keys_in_file_order(model_specific_tokens))
      set_named_token(key, model_specific_tokens[key], file);
  }

  /// Adds the named tokens of extra_special_tokens if it is an object.
  void add_extra_special_tokens(const JsonObjectFile& json_file, const char* file) {
    const auto extra_tokens = json_file.json.find(kExtraSpecialTokensKey);
    if (extra_tokens == json_file.json.end() || !extra_tokens->is_object()) return;
    for (const std::string& key : json_file.list_keys_in_file_order(*extra_tokens))
      set_named_token(key, (*extra_tokens)[key], file);
  }

  /// Reads the named tokens: the standard names, model-specific names, then extra_special_tokens.
  void read_named_tokens() {
    for (const char* const key : kStandardTokenNames) {
      if (tokenizer_config_.contains(key)) set_named_token(key, tokenizer_config_[key], kTokenizerConfigFileName);
      if (!external_tokens_.has_added_tokens_decoder && special_tokens_map_.contains(key))
        set_named_token(key, special_tokens_map_[key], kSpecialTokensMapFileName);
    }
    add_model_specific_tokens(tokenizer_config_file_, kTokenizerConfigFileName);
    if (!external_tokens_.has_added_tokens_decoder)
      add_model_specific_tokens(special_tokens_map_file_, kSpecialTokensMapFileName);
    add_extra_special_tokens(tokenizer_config_file_, kTokenizerConfigFileName);
    if (!external_tokens_.has_added_tokens_decoder)
      add_extra_special_tokens(special_tokens_map_file_, kSpecialTokensMapFileName);
    for (auto& [key, token] : named_tokens_) {
      external_tokens_.named_tokens.emplace_back(key, token.content);
      token.special = true;
      external_tokens_.tokens.push_back(std::move(token));
    }
    if (!external_tokens_.has_added_tokens_decoder) return;
    for (const char* const key : kStandardTokenNames) {
      const auto token =
          special_tokens_map_.contains(key)
              ? parse_external_token(special_tokens_map_[key], format_token_source(kSpecialTokensMapFileName, key))
              : std::nullopt;
      if (token && !token->content.empty()) external_tokens_.ignored_tokens.push_back(*token);
    }
  }

  std::vector<ExternalToken> parse_optional_token_list(const Json& json, const char* key, const char* file) const {
    if (!json.contains(key) || !json[key].is_array()) return {};
    return parse_token_list(json[key], format_token_source(file, key));
  }

  /// Reads the lists extra_special_tokens and additional_special_tokens of both files.
  void read_token_lists() {
    auto extra_tokens = parse_optional_token_list(tokenizer_config_, kExtraSpecialTokensKey, kTokenizerConfigFileName),
         additional_tokens =
             parse_optional_token_list(tokenizer_config_, kAdditionalSpecialTokensKey, kTokenizerConfigFileName);
    if (extra_tokens.empty()) {
      extra_tokens = std::move(additional_tokens);
      additional_tokens.clear();
    }
    auto special_map_extra_tokens =
             parse_optional_token_list(special_tokens_map_, kExtraSpecialTokensKey, kSpecialTokensMapFileName),
         special_map_additional_tokens =
             parse_optional_token_list(special_tokens_map_, kAdditionalSpecialTokensKey, kSpecialTokensMapFileName);
    const auto append_tokens = [](std::vector<ExternalToken>& destination, std::vector<ExternalToken>& tokens) {
      destination.insert(destination.end(), tokens.begin(), tokens.end());
    };
    append_tokens(external_tokens_.ignored_tokens, additional_tokens);
    if (external_tokens_.has_added_tokens_decoder) {
      append_tokens(external_tokens_.ignored_tokens, special_map_extra_tokens);
      append_tokens(external_tokens_.ignored_tokens, special_map_additional_tokens);
    } else {
      append_tokens(extra_tokens, special_map_extra_tokens);
      append_tokens(extra_tokens.empty() ? extra_tokens : external_tokens_.ignored_tokens,
                    special_map_additional_tokens);
    }
    append_tokens(external_tokens_.tokens, extra_tokens);
  }

  const fs::path& folder_;
  const JsonObjectFile tokenizer_config_file_;
  const JsonObjectFile special_tokens_map_file_;
  const Json& tokenizer_config_;
  const Json& special_tokens_map_;
  std::vector<std::pair<std::string, ExternalToken>> named_tokens_;
  ExternalTokens external_tokens_;
};

}  // namespace

ExternalTokens read_external_tokens(const fs::path& folder) {
  return ExternalTokenReader(folder).read_tokens();
}

bool is_file(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return false;
  if (fs::is_regular_file(path, error)) return true;
  const std::string_view kind =
      fs::exists(path, error) ? describe_non_regular_file(path) : "a link to a file that does not exist";
  throw data_error("{}: is {}, not a file; download the checkpoint again", path.string(), kind);
}

void warn_once(const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> logged_messages;
  const std::lock_guard lock(mutex);
  if (logged_messages.insert(message).second) spdlog::warn("{}", message);
}

}  // namespace vlmtrain::text
