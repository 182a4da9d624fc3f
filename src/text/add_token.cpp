#include "vlmtrain/text/add_token.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <vector>

#include "vlmtrain/io/json_text.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {
namespace {

constexpr std::string_view kJsonSpace = " \t\r\n";

/// REQUIRES of this and the two below: the text is JSON.
size_t behind_json_string(std::string_view json, size_t quote) {
  size_t at = quote + 1;
  while (json[at] != '"') at += json[at] == '\\' ? 2 : 1;
  return at + 1;
}

/// Where the value under `key` of the outermost object begins, or nothing.
std::optional<size_t> place_of_value(std::string_view json, std::string_view key) {
  const std::string quoted = '"' + std::string(key) + '"';
  int64_t depth = 0;
  for (size_t at = 0; at < json.size();) {
    if (json[at] != '"') {
      depth += json[at] == '{' || json[at] == '[' ? 1 : 0;
      depth -= json[at] == '}' || json[at] == ']' ? 1 : 0;
      ++at;
      continue;
    }
    const size_t end = behind_json_string(json, at);
    const size_t next = json.find_first_not_of(kJsonSpace, end);
    if (depth == 1 && json.substr(at, end - at) == quoted && json[next] == ':') {
      return json.find_first_not_of(kJsonSpace, next + 1);
    }
    at = end;
  }
  return std::nullopt;
}

/// Where the list or object that begins at `open` is closed.
size_t place_of_close(std::string_view json, size_t open) {
  int64_t depth = 0;
  for (size_t at = open;;) {
    if (json[at] == '"') {
      at = behind_json_string(json, at);
      continue;
    }
    depth += json[at] == '{' || json[at] == '[' ? 1 : 0;
    depth -= json[at] == '}' || json[at] == ']' ? 1 : 0;
    if (depth == 0) return at;
    ++at;
  }
}

std::string entry_of(const std::string& token, int64_t id) {
  const nlohmann::ordered_json entry{{"id", id},        {"content", token}, {"single_word", false},
                                     {"lstrip", false}, {"rstrip", false},  {"normalized", false},
                                     {"special", false}};
  return io::json_text(entry);
}

std::string with_entry(std::string json, const std::string& entry) {
  const auto list = place_of_value(json, "added_tokens");
  if (!list) return json.insert(json.find('{') + 1, "\"added_tokens\":[" + entry + "],");
  const size_t first = json.find_first_not_of(kJsonSpace, *list + 1);
  if (json[first] == ']') return json.insert(first, entry);
  const std::string between = json.substr(*list + 1, first - *list - 1);
  const size_t last = json.find_last_not_of(kJsonSpace, place_of_close(json, *list) - 1);
  return json.insert(last + 1, "," + between + entry);
}

}  // namespace

TokenInJson with_token(const std::string& json, const std::string& token, const std::string& source_name) {
  const auto tokenizer = Tokenizer::from_json(json, source_name);
  const auto known = tokenizer.token_to_id(token);
  if (known && tokenizer.encode(token).ids == std::vector<int64_t>{*known}) return {json, *known};
  const int64_t id = known.value_or(tokenizer.vocab_size());
  return {with_entry(json, entry_of(token, id)), id};
}

}  // namespace vlmtrain::text
