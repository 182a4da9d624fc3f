#pragma once

#include <cstdint>

namespace vlmtrain::image {

/// Pixels, as the picture is to be looked at: with the orientation that the file tells applied.
struct ImageSize {
  int64_t height;
  int64_t width;

  bool operator==(const ImageSize&) const = default;
};

/// A picture of more pixels is refused: Pillow's own limit against decompression bombs.
inline constexpr int64_t kMaxImagePixels = 178'956'970;

}  // namespace vlmtrain::image
