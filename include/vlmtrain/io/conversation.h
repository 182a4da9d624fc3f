#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::io {

enum class Role { kSystem, kUser, kAssistant };

/// Where an image or a video stands in a turn's text.
inline constexpr std::string_view kImagePlaceholder = "<image>";
inline constexpr std::string_view kVideoPlaceholder = "<video>";

/// One utterance. The n-th kImagePlaceholder of a conversation's turns stands for its n-th image, the n-th
/// kVideoPlaceholder for its n-th video, except for those in `literal_placeholders` (io/marks.h).
struct Turn {
  Role role;
  std::string text;
  std::vector<size_t> literal_placeholders =
      {};  ///< byte offsets of marks in `text` that are words of the text, ascending
};

}  // namespace vlmtrain::io
