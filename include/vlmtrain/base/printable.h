#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace vlmtrain {

bool is_utf8(std::string_view text);

/// What a message shows at most of a text that a file holds.
inline constexpr size_t kMaxExcerptCharacters = 120;

/// A text from outside (an id, a path, a name) as it can stand on one line of a terminal, a log or a report: valid
/// UTF-8 that controls nothing. Bytes that are no UTF-8 become \xNN; line breaks, tabs and other control characters,
/// and those that turn the direction of the text around, their escapes (\n, \t, \x1b, \u202e). All else is unchanged,
/// backslashes too: the result is for reading, not for opening.
std::string to_printable(std::string_view text);

/// The same with line breaks kept, for texts that may have several lines.
std::string to_printable_lines(std::string_view text);

/// to_printable_lines() for a message: each further line is indented by two spaces at least, so that none looks like a
/// message of its own.
std::string to_printable_message(std::string_view text);

/// to_printable() of the text's beginning: at most `max_characters` characters of it, and "…" where it is cut.
std::string make_excerpt(std::string_view text, size_t max_characters = kMaxExcerptCharacters);

}  // namespace vlmtrain
