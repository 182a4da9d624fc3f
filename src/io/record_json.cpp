#include "io/record_json.h"

#include <array>
#include <utility>

#include "vlmtrain/io/json_text.h"

namespace vlmtrain::io {
namespace {

struct PythonNumber {
  std::string_view literal;
  std::string_view json_value;
  std::string_view same_length_number;  // of the same length
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

}  // namespace vlmtrain::io
