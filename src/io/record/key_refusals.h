#pragma once

#include <string>

#include "io/record/key_rules.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// Returns an excerpt of a value for a message. The cost does not depend on the size of the value.
std::string make_value_excerpt(const RecordJson& value);

// The functions below throw data_error that names the key, its value if it matters, and a
// suggestion. `prefix` begins the message: "turn 2 ", or "" for a record.

/// Throws for a key whose rule makes it a problem. REQUIRES: `rule` is from kLossMask to
/// kVideoSegment (KeyRule's order), and not kSystemText, kImage or kVideo, which have their own
/// functions below.
[[noreturn]] void reject_key(KeyRule rule, const std::string& prefix, const std::string& key, const RecordJson& value);

/// Throws for a system text under a key that is not read: a key of a record if `is_record_key`,
/// else of a turn.
[[noreturn]] void reject_system_text(bool is_record_key, const std::string& prefix, const std::string& key);

/// Throws for media of a turn or a block under a key that is not read. `media_type` is "image" or
/// "video".
[[noreturn]] void reject_media_key(const std::string& prefix, const std::string& key, const char* media_type);

/// Same for a record. `is_numbered` is true if the key has a number, such as "image_2".
[[noreturn]] void reject_record_media_key(const std::string& key, const RecordJson& value, const char* media_type,
                                          bool is_numbered);

}  // namespace vlmtrain::io
