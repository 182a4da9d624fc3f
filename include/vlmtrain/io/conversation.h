#pragma once

#include <string>
#include <string_view>

namespace vlmtrain::io {

enum class Role { kSystem, kUser, kAssistant };

/// Where an image or a video stands in a turn's text.
inline constexpr std::string_view kImageMark = "<image>";
inline constexpr std::string_view kVideoMark = "<video>";

/// One utterance. The n-th kImageMark of a conversation's turns stands for its n-th image, the n-th kVideoMark for its
/// n-th video.
struct Turn {
  Role role;
  std::string text;
};

}  // namespace vlmtrain::io
