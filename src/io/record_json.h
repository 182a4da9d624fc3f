#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::io {

/// Returns the value of a record's text, or nothing where it is not JSON or nested too deeply. Python's json module
/// writes three words that are not JSON: NaN, its missing value, is read as null; Infinity and -Infinity are read as
/// strings of these letters.
std::optional<nlohmann::json> parse_record_json(std::string_view text);

/// Returns `text` with those three words replaced by numbers of the same length, so that find_json_error() finds what
/// else is wrong at its place.
std::string mask_python_numbers(std::string_view text);

}  // namespace vlmtrain::io
