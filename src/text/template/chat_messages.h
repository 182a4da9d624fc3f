#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/jinja/runtime/value.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

/// A piece of a turn: the placeholder of an image or video, or text between placeholders.
struct MediaPiece {
  /// The content of a piece.
  enum class Kind : uint8_t { kText, kImage, kVideo };
  Kind kind;
  std::string_view text{};  ///< a view of the turn's text
};

/// Returns the text of `turn` split at its placeholders. Literal placeholders remain text. A line
/// break after a placeholder at the beginning of the turn is dropped. No piece of text is empty.
std::vector<MediaPiece> split_media_placeholders(const Turn& turn);

/// The form of a message's content that a template supports, by role.
struct ContentFormat {
  bool system_as_blocks = true;  ///< a list of blocks, else a string
  bool user_as_blocks = true;
  bool assistant_as_blocks = true;

  /// Returns whether messages of `role` have a list of blocks.
  bool uses_blocks(Role role) const;
};

/// The origin of the types of blocks ("text", "image"). A template that writes them prints lists
/// instead of reading them. Larger than the number of turns in any conversation.
inline constexpr int kBlockTypeOrigin = 1 << 30;

/// Returns the variable `messages` of a template. The text of turn n has the origin n; images and
/// videos have none.
jinja::Value make_messages(std::span<const Turn> turns, const ContentFormat& content_format,
                           const TemplateSettings& settings);

}  // namespace vlmtrain::text
