#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

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

}  // namespace vlmtrain::text::jinja
