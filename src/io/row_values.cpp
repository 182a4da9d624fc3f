#include "io/row_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

std::string get_binary_text(const json& value) {
  const auto& bytes = value.get_binary();
  return {bytes.begin(), bytes.end()};
}

/// Settles the values in `value`; the first that cannot be read goes to `unsupported_cell`.
void resolve_cell(json& value, std::optional<UnsupportedCell>& unsupported_cell) {
  if (value.is_structured()) {
    for (json& item : value) resolve_cell(item, unsupported_cell);
    return;
  }
  if (is_special_cell(value, SpecialCell::kUnsupportedType)) {
    std::string type = make_excerpt(get_binary_text(value));
    std::string problem =
        fmt::format("is of the type {}, which is not read; write it as text, numbers, lists or structs", type);
    if (!unsupported_cell) unsupported_cell = {.column = {}, .type = std::move(type), .problem = std::move(problem)};
    value = nullptr;
  } else if (is_special_cell(value, SpecialCell::kJsonText)) {
    const std::string text = get_binary_text(value);
    auto json_value = try_parse_json(text);
    if (!json_value && !unsupported_cell) {
      const JsonError error = find_json_error(text);
      unsupported_cell = {
          .column = {},
          .type = "arrow.json",
          .problem = fmt::format(
              "is of the type arrow.json and is not valid JSON at line {}, column {}: {}; write it again, or as "
              "text",
              error.line, error.column, error.reason)};
    }
    value = json_value ? *std::move(json_value) : json();
  }
}

bool is_omitted(const json& value) {
  if (!value.is_object()) return is_special_cell(value, SpecialCell::kOmittedBytes);
  const auto bytes = value.find("bytes");
  return bytes != value.end() && is_special_cell(*bytes, SpecialCell::kOmittedBytes);
}

}  // namespace

std::vector<UnsupportedCell> resolve_special_cells(json& row) {
  std::vector<UnsupportedCell> result;
  for (auto& [column, value] : row.items()) {
    std::optional<UnsupportedCell> unsupported_cell;
    resolve_cell(value, unsupported_cell);
    if (!unsupported_cell) continue;
    unsupported_cell->column = column;
    result.push_back(*std::move(unsupported_cell));
  }
  return result;
}

bool needs_media_bytes(const json& row, const std::string& video_column) {
  return std::ranges::any_of(std::initializer_list<std::string>{"video", video_column}, [&](const std::string& name) {
    const auto list = row.find(name);
    return list != row.end() && list->is_array() && std::ranges::any_of(*list, is_omitted);
  });
}

}  // namespace vlmtrain::io
