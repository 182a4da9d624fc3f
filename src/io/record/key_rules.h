#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace vlmtrain::io {

/// Object of a data set that has a key.
enum class KeyScope : uint8_t {
  kRecord,
  kTurn,
  kBlock,       ///< a content block of a turn
  kMediaObject  ///< an object that stands for an image or a video, such as {"bytes", "path"}
};

/// Treatment of a key. Values that mean the same as an absent key (null, "", [], {}) are never
/// reported. Unused keys are a notice of the record, or its problem if they would change learning.
enum class KeyRule : uint8_t {
  kUnknown,          ///< a notice
  kRead,             ///< used by a reader
  kMedia,            ///< used: images, videos or volumes
  kHarmless,         ///< its value cannot change what is learned
  kString,           ///< used if it is a string, else a notice
  kStringOrNumber,   ///< used if it is a string or a number, else a notice
  kNonNumeric,       ///< used, except for numbers, which are a notice
  kTurns,            ///< used if it has the turns, else a notice
  kFrameRate,        ///< used if the video is a list or a folder of frames
  kLossMask,         ///< answers that are learned: true and 1 change nothing, other values are a problem
  kInverseLossMask,  ///< answers that are not learned: false and 0 change nothing, other values are a problem
  kSampleWeight,     ///< weight of a record: false and numbers in [0, 1) are a problem, other values a notice
  kPreferenceLabel,  ///< label of a good answer: false is a problem
  kChosenAnswer,     ///< an answer: a problem if the turns do not end with one, else a notice
  kReasoning,        ///< a problem, as all that follow
  kTools,
  kTemplateArguments,  ///< arguments of the chat template
  kSystemText,         ///< a system text under a key that is not read
  kBlockText,          ///< a block's text under a key that is not read
  kImage,              ///< an image under a key that is not read
  kVideo,
  kAudio,
  kBoxes,         ///< a problem if the text has placeholders for boxes, else a notice
  kBase64,        ///< base64 in place of a file
  kVideoSegment,  ///< part of a video
};

/// A known key with its rule.
struct KeyEntry {
  std::string_view name;
  KeyRule rule;
  std::string_view reason = {};  ///< why a harmless key is harmless
};

/// Returns all known keys of a scope, sorted by name.
std::span<const KeyEntry> get_known_keys(KeyScope scope);

/// Returns the rule of a key, or kUnknown. Thread-safe.
KeyRule get_key_rule(KeyScope scope, std::string_view name);

}  // namespace vlmtrain::io
