#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

// Operations on texts that methods and filters share. Characters that remain keep their origin.

enum class Side { kBoth, kLeft, kRight };

/// Returns `text` without the characters of `characters` (null: white space) at its ends, as
/// str.strip().
TrackedText strip(const Text& text, const Text* characters, Side side);

/// Returns `text` with at most `count` occurrences of `needle` replaced; all if `count` is
/// negative.
TrackedText replace(const Text& text, const Text& needle, const Text& replacement, int64_t count, Budget& budget);

/// Returns the items with `separator` between them.
TrackedText join(const TrackedText& separator, const std::vector<TrackedText>& items, Budget& budget);

/// Returns the lines as str.splitlines().
std::vector<TrackedText> split_lines(const TrackedText& text, bool keep_ends);

/// Returns the parts between separators, after at most `max_splits` splits from the left or the
/// right, as str.split() and str.rsplit(). REQUIRES a separator that is not empty.
std::vector<TrackedText> split_by_separator(const Text& text, std::string_view separator, int64_t max_splits,
                                            bool from_right);

/// Returns the words between white space, after at most `max_splits` splits, as str.split() and
/// str.rsplit() without a separator.
std::vector<TrackedText> split_whitespace(const Text& text, int64_t max_splits);
std::vector<TrackedText> rsplit_whitespace(const Text& text, int64_t max_splits);

/// Returns the text as str.capitalize(), str.upper(), str.lower(), str.title() and str.swapcase().
TrackedText capitalize(const TrackedText& text);
TrackedText to_upper(const TrackedText& text);
TrackedText to_lower(const TrackedText& text);
TrackedText to_title_case(const TrackedText& text);
TrackedText swap_case(const TrackedText& text);

/// Returns the text with &, <, >, ' and " as HTML entities.
TrackedText escape_html(const TrackedText& text);

/// Returns the text padded with `fill` on both sides to `width` characters, as str.center().
TrackedText center(const Text& text, int64_t width, Budget& budget, std::string_view fill = " ");

/// Returns a list of the texts.
Value to_list_value(std::vector<TrackedText> texts);

}  // namespace vlmtrain::text::jinja
