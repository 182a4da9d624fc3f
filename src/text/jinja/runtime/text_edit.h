#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

/// What methods of texts and filters do alike. Kept characters keep their origin.

enum class Side { kBoth, kLeft, kRight };

/// Without the characters of `characters` (null: white space) at its ends.
TrackedText strip(const Text& text, const Text* characters, Side side);
/// At most `count` replacements, all where it is negative.
TrackedText replace(const Text& text, const Text& needle, const Text& replacement, int64_t count, Budget& budget);
/// `items` with `separator` between them.
TrackedText join(const TrackedText& separator, const std::vector<TrackedText>& items, Budget& budget);
/// Lines as str.splitlines() takes them.
std::vector<TrackedText> split_lines(const TrackedText& text, bool keep_ends);
/// The first character as `str.capitalize()` has it, the others small.
TrackedText capitalize(const TrackedText& text);
/// With &, <, >, ' and " as HTML writes them.
TrackedText escape_html(const TrackedText& text);
/// Filled with spaces to `width` characters.
TrackedText center(const Text& text, int64_t width, Budget& budget, std::string_view fill = " ");

Value to_list_value(std::vector<TrackedText> texts);

}  // namespace vlmtrain::text::jinja
