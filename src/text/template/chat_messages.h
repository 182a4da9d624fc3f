#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/jinja/runtime/value.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

/// A piece of the text of a turn: a placeholder of an image or video, or text between placeholders.
struct TurnPiece {
  /// The kind of a piece.
  enum class Kind : uint8_t { kText, kImage, kVideo };
  Kind kind;
  std::string_view text{};  ///< view of the turn's text; empty for placeholders
};

/// Splits the text of `turn` at its placeholders. The result refers to `turn`, which must outlive
/// it. Text that only looks like a placeholder (io::find_placeholders() skips it) remains text. A
/// line break after a placeholder at the beginning of the turn is dropped. No piece of text is
/// empty.
std::vector<TurnPiece> split_at_placeholders(const Turn& turn);

/// The form in which a template expects the content of messages, by role: a list of blocks such as
/// {"type": "text", "text": …}, or one string.
struct ContentFormat {
  bool system_uses_blocks = true;  ///< true: a list of blocks; false: a string
  bool user_uses_blocks = true;
  bool assistant_uses_blocks = true;
  bool called_answer_uses_blocks = true;  ///< of an assistant turn with tool calls or reasoning and text

  /// Returns whether the content of the message of `turn` is a list of blocks. An answer without
  /// text, next to tool calls, is an empty string; the output of a tool is a list if it has media.
  bool uses_content_blocks(const Turn& turn) const;
};

/// The origin number of the `type` strings of blocks ("text", "image"). If it occurs in the output,
/// the template printed a list of blocks instead of reading it. Larger than any turn index.
inline constexpr int kBlockTypeOrigin = 1 << 30;

/// Returns the template variable `messages`. The text of turn n and the texts in its fields have the
/// origin number n (see jinja::TextWithOrigins); images and videos have no origin. A message without
/// content has no such key, and reasoning has each name that transformers gives it.
jinja::Value make_messages(std::span<const Turn> turns, const ContentFormat& content_format,
                           const TemplateSettings& settings);

}  // namespace vlmtrain::text
