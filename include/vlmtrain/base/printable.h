#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace vlmtrain {

/// Returns true for valid UTF-8.
bool is_utf8(std::string_view text);

/// Length of excerpts in messages: an excerpt and its message fit on one line or two of a terminal.
inline constexpr size_t kMaxExcerptCharacters = 120;

/// Returns untrusted text (an id, a path, a name) as valid UTF-8 for one line of a terminal, a log
/// or a report. Escapes invalid bytes (\xNN), line breaks (\n), control characters (\t, \x1b) and
/// characters that change the direction of text (\u202e). Backslashes are unchanged, so the result
/// cannot be converted back.
std::string to_printable(std::string_view text);

/// Same as to_printable(), but keeps line breaks.
std::string to_printable_lines(std::string_view text);

/// Same as to_printable_lines(), but indents each line after the first by at least two spaces, so
/// that no line looks like a separate message.
std::string to_printable_message(std::string_view text);

/// Returns to_printable() of the first `max_characters` characters (code points) of `text`,
/// followed by "…" if the text is longer.
std::string make_excerpt(std::string_view text, size_t max_characters = kMaxExcerptCharacters);

}  // namespace vlmtrain
