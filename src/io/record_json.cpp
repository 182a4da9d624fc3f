#include "io/record_json.h"

#include <array>
#include <utility>

#include "vlmtrain/io/json_text.h"

namespace vlmtrain::io {
namespace {

struct PythonNumber {
  std::string_view word;
  std::string_view as_json;
  std::string_view as_number;  // of the same length
};
constexpr std::array kPythonNumbers = std::to_array<PythonNumber>(
    {{"-Infinity", R"("-Infinity")", "-0.000000"}, {"Infinity", R"("Infinity")", "0.000000"}, {"NaN", "null", "0.0"}});

std::string replace_python_numbers(std::string_view text, std::string_view PythonNumber::*replacement) {
  std::string replaced;
  replaced.reserve(text.size());
  bool is_in_string = false;
  for (size_t i = 0; i < text.size();) {
    if (is_in_string) {
      const size_t length = text[i] == '\\' ? 2 : 1;
      is_in_string = text[i] != '"';
      replaced += text.substr(i, length);
      i += length;
      continue;
    }
    is_in_string = text[i] == '"';
    const auto* found = kPythonNumbers.begin();
    while (found != kPythonNumbers.end() && !text.substr(i).starts_with(found->word)) ++found;
    if (found == kPythonNumbers.end()) {
      replaced += text[i++];
    } else {
      replaced += (*found).*replacement;
      i += found->word.size();
    }
  }
  return replaced;
}

bool may_hold_python_numbers(std::string_view text) {
  return text.find("NaN") != std::string_view::npos || text.find("Infinity") != std::string_view::npos;
}

}  // namespace

std::optional<nlohmann::json> parse_record_json(std::string_view text) {
  auto value = json_of(text);
  if (value || !may_hold_python_numbers(text)) return value;
  return json_of(replace_python_numbers(text, &PythonNumber::as_json));
}

std::string without_python_numbers(std::string_view text) {
  if (!may_hold_python_numbers(text)) return std::string(text);
  return replace_python_numbers(text, &PythonNumber::as_number);
}

}  // namespace vlmtrain::io
