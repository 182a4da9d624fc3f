#pragma once

#include <optional>
#include <string>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

/// How Python writes values. Characters of texts keep their origin, what is written around them has none. All throw
/// Failure for what cannot be written (functions, generators) and past the budget.

/// str(): a text as it is, nothing for what is undefined.
void append_str(TrackedText& out, const Value& value, Budget& budget);
/// repr(): texts between quotes.
void append_repr(TrackedText& out, const Value& value, Budget& budget);
TrackedText to_str(const Value& value, Budget& budget);

std::string format_float_repr(double value);

/// json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;          ///< what is not ASCII as \uXXXX
  std::optional<std::string> indent;  ///< of a level; each item then has its line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
void append_json(TrackedText& out, const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace vlmtrain::text::jinja
