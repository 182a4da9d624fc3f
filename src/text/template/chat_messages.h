#pragma once

#include <span>
#include <vector>

#include "text/jinja/runtime/value.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

/// How a template takes the text of a turn, by the turn's role.
struct ContentFormat {
  bool system_as_blocks = true;  ///< else a string
  bool user_as_blocks = true;
  bool assistant_as_blocks = true;

  bool uses_blocks(Role role) const;
};

/// The origin of what says of what kind a block is: a template that writes it has taken the blocks for one text.
inline constexpr int kBlockTypeOrigin = 1 << 30;

/// The `messages` of a template. The text of turn n has the origin n, images and videos none.
jinja::Value make_messages(std::span<const Turn> turns, const ContentFormat& content_format,
                           const TemplateSettings& settings);

}  // namespace vlmtrain::text
