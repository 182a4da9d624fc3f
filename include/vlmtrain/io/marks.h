#pragma once

#include <cstddef>
#include <vector>

#include "vlmtrain/io/conversation.h"

namespace vlmtrain::io {

/// The place of an image or a video in a turn's text.
struct MediaPlaceholder {
  size_t begin;   ///< byte offset of kImagePlaceholder or kVideoPlaceholder, which have the same length
  bool is_video;  ///< else an image or a volume

  bool operator==(const MediaPlaceholder&) const = default;
};

/// Returns the marks of `turn` that stand for media, in the order of the text: all but its `literal_placeholders`.
std::vector<MediaPlaceholder> find_placeholders(const Turn& turn);

}  // namespace vlmtrain::io
