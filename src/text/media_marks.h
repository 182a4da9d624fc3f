#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "vlmtrain/text/conversation.h"

namespace vlmtrain::text {

/// A piece of a turn: a mark of a medium, or text between two marks.
struct MediaPiece {
  enum class Kind : uint8_t { kText, kImage, kVideo };
  Kind kind;
  std::string_view text{};  ///< of the turn's lifetime
};

/// The text of `turn` cut at its marks; its literal marks stay text. A line break directly after a mark that opens it
/// is dropped; no piece of text is empty.
std::vector<MediaPiece> split_media_marks(const Turn& turn);

}  // namespace vlmtrain::text
