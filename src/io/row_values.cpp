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

std::string text_of(const json& value) {
  const auto& bytes = value.get_binary();
  return {bytes.begin(), bytes.end()};
}

/// Settles the values in `value`; the first that cannot be read goes to `unread`.
void settle(json& value, std::optional<UnreadCell>& unread) {
  if (value.is_structured()) {
    for (json& item : value) settle(item, unread);
    return;
  }
  if (is_row_value(value, RowValue::kUnreadType)) {
    std::string type = excerpt(text_of(value));
    std::string problem =
        fmt::format("is of the type {}, which is not read; write it as text, numbers, lists or structs", type);
    if (!unread) unread = {.column = {}, .type = std::move(type), .problem = std::move(problem)};
    value = nullptr;
  } else if (is_row_value(value, RowValue::kJsonText)) {
    const std::string text = text_of(value);
    auto parsed = json_of(text);
    if (!parsed && !unread) {
      const JsonFault fault = find_json_fault(text);
      unread = {.column = {},
                .type = "arrow.json",
                .problem = fmt::format(
                    "is of the type arrow.json and is not valid JSON at line {}, column {}: {}; write it again, or as "
                    "text",
                    fault.line, fault.column, fault.reason)};
    }
    value = parsed ? *std::move(parsed) : json();
  }
}

bool is_dropped(const json& value) {
  if (!value.is_object()) return is_row_value(value, RowValue::kDroppedBytes);
  const auto bytes = value.find("bytes");
  return bytes != value.end() && is_row_value(*bytes, RowValue::kDroppedBytes);
}

}  // namespace

std::vector<UnreadCell> settle_row_values(json& row) {
  std::vector<UnreadCell> all;
  for (auto& [column, value] : row.items()) {
    std::optional<UnreadCell> unread;
    settle(value, unread);
    if (!unread) continue;
    unread->column = column;
    all.push_back(*std::move(unread));
  }
  return all;
}

bool needs_content(const json& row, const std::string& video_column) {
  return std::ranges::any_of(std::initializer_list<std::string>{"video", video_column}, [&](const std::string& name) {
    const auto list = row.find(name);
    return list != row.end() && list->is_array() && std::ranges::any_of(*list, is_dropped);
  });
}

}  // namespace vlmtrain::io
