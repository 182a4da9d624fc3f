#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include "io/record/key_rules.h"

namespace vlmtrain::io {

/// Returns an excerpt of a value for a message, at a cost that does not grow with the value.
std::string make_value_excerpt(const nlohmann::json& value);

// Throw data_error that names a key, its value where that matters, and the remedy. `prefix` begins the message: "turn 2
// ", or "" for a record.

/// Of the rules that are a problem by themselves, kLossMask to kSegment.
[[noreturn]] void refuse_key(KeyRule rule, const std::string& prefix, const std::string& key,
                             const nlohmann::json& value);

[[noreturn]] void refuse_system_text(bool is_of_record, const std::string& prefix, const std::string& key);

/// An image or a video (`media_type`: "image" or "video") of a turn or a block under a key that is not read.
[[noreturn]] void refuse_media_key(const std::string& prefix, const std::string& key, const char* media_type);

/// The same of a record; `is_numbered`: the key is one of several, such as "image_2".
[[noreturn]] void refuse_record_media_key(const std::string& key, const nlohmann::json& value, const char* media_type,
                                          bool is_numbered);

}  // namespace vlmtrain::io
