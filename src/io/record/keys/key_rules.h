#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// The object of a data set in which a key occurs.
enum class KeyScope : uint8_t {
  kRecord,
  kTurn,
  kBlock,       ///< a content block of a turn
  kMediaObject  ///< an object that represents an image or a video, such as {"bytes", "path"}
};

/// Treatment of a key. Blank values (is_blank) mean the same as an absent key and are never
/// reported. Below, "a notice" means that a key is ignored with a notice of the record, and "a
/// problem" that the record cannot be used, because the key would change what is learned.
enum class KeyRule : uint8_t {
  kUnknown,          ///< a key that is not in the tables: a notice
  kRead,             ///< used by a reader
  kMedia,            ///< used: images, videos or volumes
  kHarmless,         ///< its value cannot change what is learned
  kString,           ///< used if it is a string, else a notice
  kStringOrNumber,   ///< used if it is a string or a number, else a notice
  kNonNumeric,       ///< used, except for numbers, which are a notice
  kTurns,            ///< used if the turns are read from this key, else a notice
  kFrameRate,        ///< used if the video is a list or a folder of frames
  kLossMask,         ///< whether an answer is learned: used in turns; elsewhere a problem unless it is true or 1
  kInverseLossMask,  ///< whether an answer is not learned: used in turns
  kSampleWeight,     ///< weight of a record: false and numbers in [0, 1) are a problem, else a notice unless true or 1
  kPreferenceLabel,  ///< marks a preferred answer: a problem unless it is true or 1
  kChosenAnswer,     ///< an answer: a problem if the turns do not end with an answer, else a notice
  kReasoning,        ///< a reasoning text: a problem, as all rules below unless they say otherwise
  kTools,            ///< tools or tool calls
  kSystemText,       ///< a system text under a key that is not read
  kBlockText,        ///< a block's text under a key that is not read
  kImage,            ///< an image under a key that is not read; in a record with images, a notice
  kVideo,            ///< a video under a key that is not read; in a record with videos, a notice
  kAudio,            ///< audio, which no model supports
  kBoxes,            ///< read if the text has marks for boxes (record/object_marks.h), else a notice
  kVideoSegment,     ///< start or end of a part of a video
};

/// A known key with its rule.
struct KeyEntry {
  std::string_view name;
  KeyRule rule;
  std::string_view reason = {};  ///< why the key is harmless; only for kHarmless
};

/// Returns all known keys of a scope, sorted by name. Thread-safe.
std::span<const KeyEntry> get_key_entries(KeyScope scope);

/// Returns the rule of a key, or kUnknown if the key is not in the tables. Thread-safe.
KeyRule get_key_rule(KeyScope scope, std::string_view name);

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
