#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace vlmtrain::io {

/// Where a key of a data set stands.
enum class KeyPlace : uint8_t {
  kRecord,
  kTurn,
  kBlock,  ///< of a turn's content
  kMedium  ///< an object that stands for an image or a video, such as {"bytes", "path"}
};

/// How a key is treated. Values that mean the same as an absent key (null, "", [], {}) are never reported.
enum class KeyRule : uint8_t {
  kUnknown,       ///< a notice
  kRead,          ///< a reader uses it
  kMedia,         ///< read: images, videos or volumes
  kHarmless,      ///< its value cannot change what is learned
  kWord,          ///< read where it is a string, else a notice
  kName,          ///< the same of a string or a number
  kAmount,        ///< read, except for numbers, which are a notice
  kTurns,         ///< read where it holds the turns, else a notice
  kFrameRate,     ///< read where the video is a list or a folder of frames
  kLossMask,      ///< which answers are learned: true and 1 change nothing, other values are a problem
  kLossMaskOff,   ///< which answers are not learned: false and 0 change nothing, other values are a problem
  kSampleWeight,  ///< of a whole record: false and numbers in [0, 1) are a problem, other values a notice
  kDesirable,     ///< whether the answer is a good one: false is a problem
  kChosen,        ///< an answer: a problem where the turns do not end with one, else a notice
  kReasoning,     ///< a problem, as all below
  kTool,
  kTemplate,    ///< arguments of the chat template
  kSystemText,  ///< a system text under a key that is not read
  kText,        ///< a block's text under a key that is not read
  kImage,       ///< an image under a key that is not read
  kVideo,
  kAudio,
  kBoxes,    ///< a problem where the text has marks that stand for them, else a notice
  kEncoded,  ///< base64 in place of a file
  kSegment,  ///< which part of a video is looked at
};

struct KeyEntry {
  std::string_view name;
  KeyRule rule;
  std::string_view reason = {};  ///< of a harmless key: why
};

/// Returns all keys that are known in a place, sorted by name.
std::span<const KeyEntry> known_keys(KeyPlace place);

/// Returns the rule of a key; kUnknown for one that is not known in this place. Thread-safe.
KeyRule rule_of_key(KeyPlace place, std::string_view name);

}  // namespace vlmtrain::io
