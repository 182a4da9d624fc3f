#pragma once

#include <span>
#include <vector>

#include "text/jinja/value.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

/// How a template takes the text of a turn, by the turn's role.
struct ContentForm {
  bool blocks_of_system = true;  ///< else a string
  bool blocks_of_user = true;
  bool blocks_of_assistant = true;

  bool blocks_of(Role role) const;
};

/// The origin of what says of what kind a block is: a template that writes it has taken the blocks for one text.
inline constexpr int kKindOfBlock = 1 << 30;

/// The `messages` of a template. The text of turn n has the origin n, images and videos none.
jinja::Value messages_of(std::span<const Turn> turns, const ContentForm& form, const TemplateSettings& settings);

}  // namespace vlmtrain::text
