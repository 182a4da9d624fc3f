#pragma once

#include <cstdint>

namespace vlmtrain::image {

/// The size of an image in pixels. Unless stated otherwise, the EXIF orientation is applied.
struct ImageSize {
  int64_t height;
  int64_t width;

  bool operator==(const ImageSize&) const = default;
};

/// The maximum number of pixels of an image. Equals Pillow's limit against decompression bombs,
/// twice Image.MAX_IMAGE_PIXELS.
inline constexpr int64_t kMaxImagePixels = 178'956'970;

}  // namespace vlmtrain::image
