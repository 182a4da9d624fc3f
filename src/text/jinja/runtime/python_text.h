#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

// Values as Python prints them, and string literals as Python reads them. Characters of texts keep
// their origin; quotes, brackets and other added characters have none. These functions throw
// EvaluationError if `budget` is exceeded, and for values that cannot be printed (functions,
// generators).

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

// Operations on texts that methods and filters share. Characters of the inputs keep their origin in
// the results. Functions with a parameter `budget` throw EvaluationError if it is exceeded.

/// The side of a text from which strip() removes characters.
enum class StripSide { kBoth, kLeft, kRight };

/// Returns `text` without characters at its ends that occur in `characters`, as str.strip(). Null
/// means white space.
TextWithOrigins strip(const TextValue& text, const TextValue* characters, StripSide side);

/// Returns `text` with the first `count` occurrences of `needle` replaced, as str.replace(). A
/// negative `count` means all. An empty needle matches before each character and at the end.
TextWithOrigins replace(const TextValue& text, const TextValue& needle, const TextValue& replacement, int64_t count,
                        RenderBudget& budget);

/// Returns the items with `separator` between them.
TextWithOrigins join(const TextWithOrigins& separator, const std::vector<TextWithOrigins>& items, RenderBudget& budget);

/// Returns the lines of `text` as str.splitlines(keep_ends).
std::vector<TextWithOrigins> split_lines(const TextWithOrigins& text, bool keep_ends);

/// Returns the parts between separators after at most `max_splits` splits, as str.split() or, with
/// `from_right`, str.rsplit(). REQUIRES that `separator` is not empty and max_splits >= 0.
std::vector<TextWithOrigins> split_at_separator(const TextValue& text, std::string_view separator, int64_t max_splits,
                                                bool from_right);

/// Each returns the words between white space after at most `max_splits` splits, as str.split() and
/// str.rsplit() without a separator. REQUIRES max_splits >= 0.
std::vector<TextWithOrigins> split_at_white_space(const TextValue& text, int64_t max_splits);
std::vector<TextWithOrigins> rsplit_at_white_space(const TextValue& text, int64_t max_splits);

/// Each returns the result of str.capitalize(), str.upper(), str.lower(), str.title() and
/// str.swapcase().
TextWithOrigins capitalize(const TextWithOrigins& text);
TextWithOrigins to_upper(const TextWithOrigins& text);
TextWithOrigins to_lower(const TextWithOrigins& text);
TextWithOrigins to_title_case(const TextWithOrigins& text);
TextWithOrigins swap_case(const TextWithOrigins& text);

/// Returns the text with &, <, >, ' and " as HTML entities.
TextWithOrigins escape_html(const TextWithOrigins& text);

/// Returns the text padded on both sides with `fill`, one character in UTF-8, to `width`
/// characters, as str.center().
TextWithOrigins center(const TextValue& text, int64_t width, RenderBudget& budget, std::string_view fill = " ");

/// Returns the texts as a list value.
Value to_list_value(std::vector<TextWithOrigins> texts);

// The two ways in which Python formats a text.

/// Returns Python's `text % values`. Supports %s, %r, %d, %i, %u, %x, %X, %o, %f, %F, %e, %E, %g,
/// %G, %c, %% and %(name)s with flags, width and precision. Does not support %a, `*` as width or
/// precision, the flag # of integers, integers for %c, and integers beyond 64 bits. Throws
/// EvaluationError for these, if Python raises an exception, and for a width or precision above
/// 1000.
Value apply_percent_format(const TextValue& text, const Value& values, RenderBudget& budget);

/// Returns Python's text.format(…). Supports {}, {0}, {name}, {name.attribute}, {name[key]}, !r and
/// !s. Throws EvaluationError for format specifications ({:…}), for !a, and if Python raises an
/// exception.
Value apply_brace_format(RenderContext& context, const TextValue& text, const Arguments& arguments);

}  // namespace vlmtrain::text::jinja
