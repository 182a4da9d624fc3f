#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

// Values as Python prints them, and string literals as Python reads them. Characters of texts keep
// their origin; quotes, brackets and other added characters have none. All functions with a
// parameter `budget` throw EvaluationError if it is exceeded, and for values that cannot be printed
// (functions, generators).

/// Appends str(value). Undefined values append nothing.
void append_str(TextWithOrigins& out, const Value& value, RenderBudget& budget);

/// Appends repr(value).
void append_repr(TextWithOrigins& out, const Value& value, RenderBudget& budget);

/// Returns str(value).
TextWithOrigins to_str(const Value& value, RenderBudget& budget);

/// Returns Python's repr() of a float.
std::string format_float_repr(double value);

/// The arguments of Python's json.dumps(), with the same names. item_separator and key_separator
/// are its `separators`.
struct JsonStyle {
  bool ensure_ascii = false;          ///< escapes all characters that are not ASCII as \uXXXX
  std::optional<std::string> indent;  ///< text per level, with one item per line; nothing: a single line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

/// Appends json.dumps(value) with `style`. Throws EvaluationError for values that are not JSON
/// serializable.
void append_json(TextWithOrigins& out, const Value& value, const JsonStyle& style, RenderBudget& budget);

/// Returns the text of a Python string literal. `literal` holds the characters between the quotes.
/// Throws EvaluationError for truncated escapes, surrogates and \N{name}.
std::string unescape_literal(std::string_view literal);

}  // namespace vlmtrain::text::jinja
