#pragma once

#include <string>
#include <string_view>

namespace vlmtrain::io {

enum class Role { kSystem, kUser, kAssistant };

/// Where an image stands in a turn's text.
constexpr std::string_view kImageMark = "<image>";

/// One utterance. The n-th kImageMark of a conversation's turns stands for its n-th image.
struct Turn {
  Role role;
  std::string text;
};

}  // namespace vlmtrain::io
