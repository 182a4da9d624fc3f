#pragma once

#include <string>
#include <string_view>

namespace vlmtrain::text {

enum class Role { kSystem, kUser, kAssistant };

/// What one side says. An image is the mark kImageMark at its place in the text.
struct Turn {
  Role role;
  std::string text;
};

/// Stands for an image in a turn's text, as in LLaVA's data.
inline constexpr std::string_view kImageMark = "<image>";

}  // namespace vlmtrain::text
