#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::io {

/// How many lists and objects may stand in each other: a file that is meant for a model has less than ten, and what
/// walks a value (a copy, a message) calls itself for each. io/json.h refuses more.
inline constexpr size_t kMaxJsonDepth = 200;

bool is_json_too_deep(std::string_view text);

/// The value of a text, or nothing where it is not JSON or too deep.
std::optional<nlohmann::json> try_parse_json(std::string_view text);

/// A value as JSON text, on one line or indented. Never fails: bytes that are no UTF-8, which a path may hold, become
/// U+FFFD, and control characters that a terminal would obey are escaped.
std::string to_json_string(const nlohmann::json& value, int indent = -1);
std::string to_json_string(const nlohmann::ordered_json& value, int indent = -1);

/// json_text on one line, cut to what a message may quote.
std::string make_json_excerpt(const nlohmann::json& value);
std::string make_json_excerpt(const nlohmann::ordered_json& value);

}  // namespace vlmtrain::io
