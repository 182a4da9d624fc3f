#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

// Values as Python prints them, and string literals as Python reads them. Characters of texts keep
// their origin; characters around them have none. All functions that take a budget throw
// EvaluationError beyond it, and for values that have no such form (functions, generators).

/// Appends str(value). Undefined values append nothing.
void append_str(TrackedText& out, const Value& value, Budget& budget);

/// Appends repr(value).
void append_repr(TrackedText& out, const Value& value, Budget& budget);

/// Returns str(value).
TrackedText to_str(const Value& value, Budget& budget);

/// Returns repr(value) of a float.
std::string format_float_repr(double value);

/// The arguments of json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;          ///< escapes all characters that are not ASCII as \uXXXX
  std::optional<std::string> indent;  ///< of one level, with one item per line; nothing: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

/// Appends json.dumps(value).
void append_json(TrackedText& out, const Value& value, const JsonStyle& style, Budget& budget);

/// Returns the text of a string literal, given the characters between its quotes. Throws
/// EvaluationError for truncated escapes, surrogates and \N{name}.
std::string unescape_literal(std::string_view literal);

}  // namespace vlmtrain::text::jinja
