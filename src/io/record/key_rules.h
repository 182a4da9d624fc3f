#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace vlmtrain::io {

/// Where a key of a data set stands.
enum class KeyScope : uint8_t {
  kRecord,
  kTurn,
  kBlock,       ///< of a turn's content
  kMediaObject  ///< an object that stands for an image or a video, such as {"bytes", "path"}
};

/// How a key is treated. Values that mean the same as an absent key (null, "", [], {}) are never reported.
enum class KeyRule : uint8_t {
  kUnknown,          ///< a notice
  kRead,             ///< a reader uses it
  kMedia,            ///< read: images, videos or volumes
  kHarmless,         ///< its value cannot change what is learned
  kString,           ///< read where it is a string, else a notice
  kStringOrNumber,   ///< the same of a string or a number
  kNonNumeric,       ///< read, except for numbers, which are a notice
  kTurns,            ///< read where it holds the turns, else a notice
  kFrameRate,        ///< read where the video is a list or a folder of frames
  kLossMask,         ///< which answers are learned: true and 1 change nothing, other values are a problem
  kInverseLossMask,  ///< which answers are not learned: false and 0 change nothing, other values are a problem
  kSampleWeight,     ///< of a whole record: false and numbers in [0, 1) are a problem, other values a notice
  kPreferenceLabel,  ///< whether the answer is a good one: false is a problem
  kChosenAnswer,     ///< an answer: a problem where the turns do not end with one, else a notice
  kReasoning,        ///< a problem, as all below
  kTools,
  kTemplateArguments,  ///< arguments of the chat template
  kSystemText,         ///< a system text under a key that is not read
  kBlockText,          ///< a block's text under a key that is not read
  kImage,              ///< an image under a key that is not read
  kVideo,
  kAudio,
  kBoxes,         ///< a problem where the text has marks that stand for them, else a notice
  kBase64,        ///< base64 in place of a file
  kVideoSegment,  ///< which part of a video is looked at
};

struct KeyEntry {
  std::string_view name;
  KeyRule rule;
  std::string_view reason = {};  ///< of a harmless key: why
};

/// Returns all keys that are known in a place, sorted by name.
std::span<const KeyEntry> get_known_keys(KeyScope scope);

/// Returns the rule of a key; kUnknown for one that is not known in this place. Thread-safe.
KeyRule get_key_rule(KeyScope scope, std::string_view name);

}  // namespace vlmtrain::io
