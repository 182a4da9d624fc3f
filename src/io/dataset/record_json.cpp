#include "io/dataset/record_json.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

namespace {

using nlohmann::json;

struct PythonNumber {
  std::string_view literal;
  std::string_view json_value;
  std::string_view same_length_number;  // same length as `literal`
};
constexpr std::array kPythonNumbers = std::to_array<PythonNumber>(
    {{"-Infinity", R"("-Infinity")", "-0.000000"}, {"Infinity", R"("Infinity")", "0.000000"}, {"NaN", "null", "0.0"}});

std::string replace_python_numbers(std::string_view text, std::string_view PythonNumber::*replacement) {
  std::string result;
  result.reserve(text.size());
  bool is_in_string = false;
  for (size_t i = 0; i < text.size();) {
    if (is_in_string) {
      const size_t length = text[i] == '\\' ? 2 : 1;
      is_in_string = text[i] != '"';
      result += text.substr(i, length);
      i += length;
      continue;
    }
    is_in_string = text[i] == '"';
    const auto* it = kPythonNumbers.begin();
    while (it != kPythonNumbers.end() && !text.substr(i).starts_with(it->literal)) ++it;
    if (it == kPythonNumbers.end()) {
      result += text[i++];
    } else {
      result += (*it).*replacement;
      i += it->literal.size();
    }
  }
  return result;
}

bool may_contain_python_numbers(std::string_view text) {
  return text.find("NaN") != std::string_view::npos || text.find("Infinity") != std::string_view::npos;
}

constexpr std::array kRecordKeys = std::to_array<std::string_view>(
    {"messages", "conversations", "texts", "question", "answer", "instruction", "output", "caption"});
/// Lists that belong to a record with unknown column names, not to a collection of records.
constexpr std::array kRecordLists = std::to_array<std::string_view>(
    {"images", "image", "videos", "video", "volumes", "masks", "objects", "tools", "functions", "chosen", "rejected"});
constexpr std::array kMediaKeys = std::to_array<std::string_view>({"path", "bytes", "url", "type"});
constexpr std::array kTurnKeys = std::to_array<std::string_view>({"role", "from", "content", "value"});
constexpr std::array kLlamaFactoryKeys =
    std::to_array<std::string_view>({"file_name", "hf_hub_url", "ms_hub_url", "script_url", "cloud_file_name"});
constexpr std::array kInternVlKeys = std::to_array<std::string_view>({"annotation", "repeat_time", "data_augment"});
constexpr std::array kQwenKeys = std::to_array<std::string_view>({"annotation_path", "data_path"});

bool has_any_key(const json& object, std::span<const std::string_view> keys) {
  return std::ranges::any_of(keys, [&](std::string_view key) { return object.contains(key); });
}

/// Parses only the first entries of the object's lists, because the text may be a whole data set.
json parse_beginning(std::string_view text) {
  constexpr int kMaxDepth = 3;  // the keys of a record in a list of the object
  bool is_first_entry = true;
  const auto keep = [&](int depth, json::parse_event_t event, const json&) {
    if (event == json::parse_event_t::array_start && depth == 1) is_first_entry = true;
    const bool is_start = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (is_start && depth >= kMaxDepth) return false;
    if (!is_start || depth != 2) return true;
    return std::exchange(is_first_entry, false);
  };
  if (is_json_too_deep(text)) return {};
  return json::parse(text, keep, /*allow_exceptions=*/false);
}

std::string describe_lists(const json& object) {
  std::vector<std::string> keys;
  for (auto entry = object.begin(); entry != object.end(); ++entry) {
    const bool is_list = entry->is_array() && !entry->empty() && entry->front().is_object();
    const bool is_record_list = std::ranges::find(kRecordLists, entry.key()) != kRecordLists.end();
    if (!is_list || is_record_list) continue;
    if (!has_any_key(entry->front(), kTurnKeys) && !has_any_key(entry->front(), kMediaKeys)) {
      keys.push_back(make_excerpt(entry.key()));
    }
  }
  if (keys.empty()) return {};
  return fmt::format(
      "is one JSON object, with a list of records under \"{}\"; write that list alone to a file, such as with "
      "jq '.\"{}\"', and name it: a JSON array of records or one record a line is wanted",
      fmt::join(keys, "\", \""), keys.front());
}

std::string describe_objects(const json& object) {
  const json& first = object.front();
  if (has_any_key(first, kLlamaFactoryKeys)) {
    return "is a registry of data sets of LLaMA-Factory (dataset_info.json), not data; name the data file itself in "
           "data.train, and its columns in data.columns";
  }
  if (has_any_key(first, kInternVlKeys)) {
    return "is a registry of data sets of InternVL's trainer, not data; name its files in data.train: "
           "{path: ANNOTATION, image_root: ROOT, repeat: REPEAT_TIME} for each";
  }
  if (has_any_key(first, kQwenKeys)) {
    return "is a registry of data sets of Qwen-VL's trainer, not data; name its files in data.train: "
           "{path: ANNOTATION_PATH, image_root: DATA_PATH} for each";
  }
  if (!has_any_key(first, kRecordKeys)) return {};
  return "is one JSON object, with a record under each of its keys; write the records as a list, such as with "
         "jq '[.[]]', or one a line";
}

}  // namespace

std::optional<nlohmann::json> parse_record_json(std::string_view text) {
  auto value = try_parse_json(text);
  if (value || !may_contain_python_numbers(text)) return value;
  return try_parse_json(replace_python_numbers(text, &PythonNumber::json_value));
}

std::string mask_python_numbers(std::string_view text) {
  if (!may_contain_python_numbers(text)) return std::string(text);
  return replace_python_numbers(text, &PythonNumber::same_length_number);
}

std::string describe_wrapped_records(std::string_view text) {
  const json object = parse_beginning(text);
  if (!object.is_object() || object.empty() || has_any_key(object, kRecordKeys)) return {};
  const auto is_object = [](const json& value) { return value.is_object() && !value.empty(); };
  return std::ranges::all_of(object, is_object) ? describe_objects(object) : describe_lists(object);
}

}  // namespace vlmtrain::io
