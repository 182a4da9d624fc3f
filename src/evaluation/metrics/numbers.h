#pragma once

#include <optional>
#include <string_view>

namespace vlmtrain::evaluation {

/// Returns Python's float(text) with ASCII digits; nullopt where Python raises ValueError. Accepts
/// white space at both ends, underscores between digits, inf and nan.
std::optional<double> parse_python_float(std::string_view text);

/// Returns the last number in a text; nullopt if it has none. A number has ASCII digits, and may
/// have a sign, commas between groups of three digits, a fraction and an exponent. It follows
/// neither a letter, a digit, an underscore nor a point; such a character before a sign makes the
/// sign a dash. Characters outside ASCII are no letters here. As a regular expression of Python with
/// re.ASCII:
///
///     (?<![\w.])[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?
std::optional<double> find_last_number(std::string_view text);

}  // namespace vlmtrain::evaluation
