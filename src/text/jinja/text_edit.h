#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/object.h"

namespace vlmtrain::text::jinja {

/// What methods of texts and filters do alike. Kept characters keep their origin.

enum class Side { kBoth, kLeft, kRight };

/// Without the characters of `characters` (null: white space) at its ends.
MarkedText strip(const Text& text, const Text* characters, Side side);
/// At most `count` replacements, all where it is negative.
MarkedText replace(const Text& text, const Text& what, const Text& by, int64_t count, Budget& budget);
/// `items` with `separator` between them.
MarkedText join(const MarkedText& separator, const std::vector<MarkedText>& items, Budget& budget);
/// Lines as str.splitlines() takes them.
std::vector<MarkedText> split_lines(const MarkedText& text, bool keep_ends);
/// The first character as `str.capitalize()` has it, the others small.
MarkedText capitalized(const MarkedText& text);
/// With &, <, >, ' and " as HTML writes them.
MarkedText html_escaped(const MarkedText& text);
/// Filled with spaces to `width` characters.
MarkedText centered(const Text& text, int64_t width, Budget& budget, std::string_view fill = " ");

Value as_list(std::vector<MarkedText> texts);

}  // namespace vlmtrain::text::jinja
