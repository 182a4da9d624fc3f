#pragma once

#include <cstdint>
#include <string>

#include "io/record/keys/key_rules.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

// The functions below throw data_error that names the key, its value if it matters, and a
// suggestion. `prefix` begins the message: "turn 2 ", or "" for a record.

/// Throws for a key whose rule makes it a problem. `value` is an excerpt of its value. REQUIRES: `rule` is from
/// kLossMask to kVideoSegment (KeyRule's order), and not kSystemText, kImage or kVideo, which have their own functions
/// below.
[[noreturn]] void reject_key(KeyRule rule, const std::string& prefix, const std::string& key, const std::string& value);

/// Throws for a system text under a key that is not read: a key of a record if `is_record_key`,
/// else of a turn.
[[noreturn]] void reject_system_text(bool is_record_key, const std::string& prefix, const std::string& key);

/// Throws for media of a turn or a block under a key that is not read. `media_type` is "image" or
/// "video".
[[noreturn]] void reject_media_key(const std::string& prefix, const std::string& key, const char* media_type);

/// Form of media under a key that is not read, on which the suggestion depends.
enum class MediaForm : uint8_t {
  kSingle,
  kList,
  kUrl,      ///< one or more http URLs
  kNumbered  ///< one of several keys with numbers, such as "image_2"
};

/// Same as reject_media_key() for a record.
[[noreturn]] void reject_record_media_key(const std::string& key, const char* media_type, MediaForm form);

/// Returns true if a key needs no notice or error: it is read or harmless, or its value means the
/// same as an absent key.
bool is_acceptable_value(KeyRule rule, const RecordJson& value);

/// Returns the form of a value that may be media, except for kNumbered.
MediaForm find_media_form(const RecordJson& value);

}  // namespace vlmtrain::io
