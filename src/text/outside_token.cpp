#include "text/outside_token.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string_view>

#include "text/is_file.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// transformers' SPECIAL_TOKENS_ATTRIBUTES, in their order.
constexpr std::array kNamedTokens{"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
constexpr const char* kDecoder = "added_tokens_decoder";
constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kAdditional = "additional_special_tokens";

bool is_standard(std::string_view key) {
  return std::ranges::find(kNamedTokens, key) != kNamedTokens.end();
}

/// A text, or an added token with its properties; nothing for null and for what is neither.
std::optional<OutsideToken> token_of(const Json& value, const std::string& source) {
  if (value.is_string()) return OutsideToken{.content = value.get<std::string>(), .source = source};
  if (!value.is_object() || !value.contains("content")) return std::nullopt;
  OutsideToken token{.content = io::get<std::string>(value, "content", source), .source = source};
  token.single_word = io::get_or<bool>(value, "single_word", false, source);
  token.lstrip = io::get_or<bool>(value, "lstrip", false, source);
  token.rstrip = io::get_or<bool>(value, "rstrip", false, source);
  token.special = io::get_or<bool>(value, "special", true, source);
  token.normalized = io::get_or<bool>(value, "normalized", !token.special, source);
  return token;
}

OutsideToken required_token(const Json& value, const std::string& source) {
  auto token = token_of(value, source);
  if (!token) throw data_error("{}: {} is not a token; write a text there", source, io::json_excerpt(value));
  return std::move(*token);
}

int64_t id_of(const std::string& key, const std::string& source) {
  int64_t id = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || end != key.data() + key.size() || id < 0) {
    throw data_error("{}: \"{}\" is not the id of a token; write a whole number there", source, key);
  }
  return id;
}

/// An object of a file. The ordered form of a file with thousands of tokens would take long, so its keys are put in
/// order where that matters.
struct FileObject {
  std::string text;
  Json json = Json::object();

  /// The keys of `object`, which is of this file, in the file's order.
  std::vector<std::string> keys_in_order(const Json& object) const {
    std::vector<std::pair<size_t, std::string>> places;
    for (const auto& [key, value] : object.items()) places.emplace_back(text.find('"' + key + '"'), key);
    std::ranges::sort(places);
    std::vector<std::string> keys;
    for (auto& [place, key] : places) keys.push_back(std::move(key));
    return keys;
  }
};

FileObject object_in(const fs::path& file) {
  FileObject object;
  if (!is_file(file)) return object;
  object.text = io::read_file(file);
  object.json = io::parse_json(object.text, file.string());
  if (!object.json.is_object()) {
    throw data_error("{}: is {}, not an object", file.string(), io::json_excerpt(object.json));
  }
  return object;
}

std::vector<OutsideToken> tokens_of_decoder(const Json& decoder, const std::string& source) {
  if (!decoder.is_object()) throw data_error("{}: is not an object of ids and tokens", source);
  std::map<int64_t, OutsideToken> by_id;
  for (const auto& [key, value] : decoder.items()) {
    OutsideToken token = required_token(value, source);
    if (value.is_object() && !value.contains("special")) token.special = false;  // as the class AddedToken
    if (value.is_object() && !value.contains("normalized")) token.normalized = !token.special;
    token.id = id_of(key, source);
    token.overrides = true;
    by_id.insert_or_assign(*token.id, std::move(token));
  }
  std::vector<OutsideToken> tokens;
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  return tokens;
}

std::vector<OutsideToken> tokens_of_list(const Json& list, const std::string& source) {
  std::vector<OutsideToken> tokens;
  for (const auto& value : list) {
    OutsideToken token = required_token(value, source);
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

class OutsideReader {
 public:
  explicit OutsideReader(const fs::path& folder)
      : folder_(folder),
        config_file_(object_in(folder / kConfig)),
        map_file_(object_in(folder / kMap)),
        config_(config_file_.json),
        map_(map_file_.json) {}

  OutsideTokens read() {
    found_.has_decoder = config_.contains(kDecoder) && !config_[kDecoder].is_null();
    read_added();
    read_named();
    read_lists();
    return std::move(found_);
  }

 private:
  static constexpr const char* kConfig = "tokenizer_config.json";
  static constexpr const char* kMap = "special_tokens_map.json";

  std::string source_of(const char* file, const std::string& key) const {
    return fmt::format("{}: {}", (folder_ / file).string(), key);
  }

  void read_added() {
    if (found_.has_decoder) found_.tokens = tokens_of_decoder(config_[kDecoder], source_of(kConfig, kDecoder));
    const fs::path file = folder_ / "added_tokens.json";
    if (!is_file(file)) return;
    const Json ids = io::read_json(file);
    if (!ids.is_object()) throw data_error("{}: is not an object of tokens and ids", file.string());
    std::vector<OutsideToken> added;
    for (const auto& [content, id] : ids.items()) {
      OutsideToken token{.content = content, .source = file.string()};
      token.id = io::get<int64_t>(ids, content, file.string());
      token.special = is_special(content);
      token.normalized = !token.special;
      if (!content.empty()) added.push_back(std::move(token));
    }
    std::ranges::sort(added, {}, [](const OutsideToken& token) { return *token.id; });
    auto& where = found_.has_decoder ? found_.unread : found_.tokens;
    where.insert(where.end(), added.begin(), added.end());
  }

  bool is_special(const std::string& content) const {
    const auto is_it = [&content](const Json& value) {
      const auto token = token_of(value, "");
      return token && token->content == content;
    };
    for (const Json* json : {&config_, &map_}) {
      for (const auto& [key, value] : json->items()) {
        if (is_standard(key) && is_it(value)) return true;
        if ((key == kExtra || key == kAdditional) && value.is_array() && std::ranges::any_of(value, is_it)) return true;
      }
    }
    return false;
  }

  void name(const std::string& key, const Json& value, const char* file) {
    const auto token = token_of(value, source_of(file, key));
    if (!token || token->content.empty()) return;
    const auto known = std::ranges::find(named_, key, &std::pair<std::string, OutsideToken>::first);
    if (known == named_.end()) {
      named_.emplace_back(key, *token);
    } else {
      known->second = *token;
    }
  }

  /// Tokens with a name of the model's own, such as image_token.
  void name_others(const FileObject& object, const char* file) {
    Json others = Json::object();
    for (const auto& [key, value] : object.json.items()) {
      if (!is_standard(key) && key.ends_with("_token") && value.is_string()) others[key] = value;
    }
    for (const std::string& key : object.keys_in_order(others)) name(key, others[key], file);
  }

  void name_extra(const FileObject& object, const char* file) {
    const auto extra = object.json.find(kExtra);
    if (extra == object.json.end() || !extra->is_object()) return;
    for (const std::string& key : object.keys_in_order(*extra)) name(key, (*extra)[key], file);
  }

  void read_named() {
    for (const char* const key : kNamedTokens) {
      if (config_.contains(key)) name(key, config_[key], kConfig);
      if (!found_.has_decoder && map_.contains(key)) name(key, map_[key], kMap);
    }
    name_others(config_file_, kConfig);
    if (!found_.has_decoder) name_others(map_file_, kMap);
    name_extra(config_file_, kConfig);
    if (!found_.has_decoder) name_extra(map_file_, kMap);
    for (auto& [key, token] : named_) {
      found_.named.emplace_back(key, token.content);
      token.special = true;
      found_.tokens.push_back(std::move(token));
    }
    if (!found_.has_decoder) return;
    for (const char* const key : kNamedTokens) {
      const auto token = map_.contains(key) ? token_of(map_[key], source_of(kMap, key)) : std::nullopt;
      if (token && !token->content.empty()) found_.unread.push_back(*token);
    }
  }

  std::vector<OutsideToken> list_of(const Json& json, const char* key, const char* file) const {
    if (!json.contains(key) || !json[key].is_array()) return {};
    return tokens_of_list(json[key], source_of(file, key));
  }

  void read_lists() {
    auto extra = list_of(config_, kExtra, kConfig), additional = list_of(config_, kAdditional, kConfig);
    if (extra.empty()) {
      extra = std::move(additional);
      additional.clear();
    }
    auto of_map = list_of(map_, kExtra, kMap), additional_of_map = list_of(map_, kAdditional, kMap);
    const auto append = [](std::vector<OutsideToken>& to, std::vector<OutsideToken>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(found_.unread, additional);
    if (found_.has_decoder) {
      append(found_.unread, of_map);
      append(found_.unread, additional_of_map);
    } else {
      append(extra, of_map);
      append(extra.empty() ? extra : found_.unread, additional_of_map);
    }
    append(found_.tokens, extra);
  }

  const fs::path& folder_;
  const FileObject config_file_;
  const FileObject map_file_;
  const Json& config_;
  const Json& map_;
  std::vector<std::pair<std::string, OutsideToken>> named_;
  OutsideTokens found_;
};

}  // namespace

OutsideTokens read_outside_tokens(const fs::path& folder) {
  return OutsideReader(folder).read();
}

}  // namespace vlmtrain::text
