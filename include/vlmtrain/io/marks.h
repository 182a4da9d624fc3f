#pragma once

#include <cstddef>
#include <vector>

#include "vlmtrain/io/conversation.h"

namespace vlmtrain::io {

/// The place of an image or a video in a turn's text.
struct Mark {
  size_t begin;   ///< byte offset of kImageMark or kVideoMark, which have the same length
  bool is_video;  ///< else an image or a volume

  bool operator==(const Mark&) const = default;
};

/// Returns the marks of `turn` that stand for media, in the order of the text: all but its `literal_marks`.
std::vector<Mark> find_marks(const Turn& turn);

}  // namespace vlmtrain::io
