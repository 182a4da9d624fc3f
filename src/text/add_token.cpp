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
size_t find_json_string_end(std::string_view json, size_t quote) {
  size_t pos = quote + 1;
  while (json[pos] != '"') pos += json[pos] == '\\' ? 2 : 1;
  return pos + 1;
}

/// Where the value under `key` of the outermost object begins, or nothing.
std::optional<size_t> find_value(std::string_view json, std::string_view key) {
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
    const size_t next = json.find_first_not_of(kJsonSpace, end);
    if (depth == 1 && json.substr(pos, end - pos) == quoted_key && json[next] == ':') {
      return json.find_first_not_of(kJsonSpace, next + 1);
    }
    pos = end;
  }
  return std::nullopt;
}

/// Where the list or object that begins at `begin` is closed.
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

std::string make_entry(const std::string& token, int64_t id) {
  const nlohmann::ordered_json entry{{"id", id},        {"content", token}, {"single_word", false},
                                     {"lstrip", false}, {"rstrip", false},  {"normalized", false},
                                     {"special", false}};
  return io::to_json_string(entry);
}

std::string insert_entry(std::string json, const std::string& entry) {
  const auto list_begin = find_value(json, "added_tokens");
  if (!list_begin) return json.insert(json.find('{') + 1, "\"added_tokens\":[" + entry + "],");
  const size_t first = json.find_first_not_of(kJsonSpace, *list_begin + 1);
  if (json[first] == ']') return json.insert(first, entry);
  const std::string separator = json.substr(*list_begin + 1, first - *list_begin - 1);
  const size_t last = json.find_last_not_of(kJsonSpace, find_closing_bracket(json, *list_begin) - 1);
  return json.insert(last + 1, "," + separator + entry);
}

}  // namespace

AddTokenResult add_token(const std::string& json, const std::string& token, const std::string& source_name) {
  const auto tokenizer = Tokenizer::from_json(json, source_name);
  const auto existing_id = tokenizer.token_to_id(token);
  if (existing_id && tokenizer.encode(token).ids == std::vector<int64_t>{*existing_id}) return {json, *existing_id};
  const int64_t id = existing_id.value_or(tokenizer.vocab_size());
  return {insert_entry(json, make_entry(token, id)), id};
}

}  // namespace vlmtrain::text
