#pragma once

#include <optional>
#include <string>

#include "text/jinja/object.h"

namespace vlmtrain::text::jinja {

/// How Python writes values. Characters of texts keep their origin, what is written around them has none. All throw
/// Failure for what cannot be written (functions, generators) and past the budget.

/// str(): a text as it is, nothing for what is undefined.
void append_str(MarkedText& out, const Value& value, Budget& budget);
/// repr(): texts between quotes.
void append_repr(MarkedText& out, const Value& value, Budget& budget);
MarkedText str_of(const Value& value, Budget& budget);

std::string repr_of_real(double value);

/// json.dumps.
struct JsonStyle {
  bool ascii = false;                 ///< what is not ASCII as \uXXXX
  std::optional<std::string> indent;  ///< of a level; each item then has its line
  std::string between_items = ", ";
  std::string after_key = ": ";
  bool sort_keys = false;
};
void append_json(MarkedText& out, const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace vlmtrain::text::jinja
