#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::io {

/// Parses the text of a record. Returns nothing if it is not JSON or nested too deeply. Accepts the
/// three literals of Python's json module that are not JSON: NaN becomes null; Infinity and
/// -Infinity become strings.
std::optional<nlohmann::json> parse_record_json(std::string_view text);

/// Returns `text` with these literals replaced by numbers of the same length, so that
/// find_json_error() reports other errors at their original position.
std::string mask_python_numbers(std::string_view text);

/// Describes a JSON object that contains records instead of being one: a list of records under a
/// key, records by name, or a registry of data sets of another trainer. Returns a predicate that
/// names the key and a suggestion, or "" if the object may be a record.
std::string describe_wrapped_records(std::string_view text);

}  // namespace vlmtrain::io
