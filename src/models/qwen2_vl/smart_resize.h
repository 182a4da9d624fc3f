#pragma once

#include <cstdint>

#include "vlmtrain/image/decode.h"

namespace vlmtrain::models::qwen2_vl {

/// Pixels that a picture may have after resizing.
struct PixelBudget {
  int64_t min_pixels;
  int64_t max_pixels;
};

/// The size a picture is resized to: both sides multiples of `factor`, the ratio kept as far as that goes, within the
/// budget as far as a ratio allows it; the arithmetic is transformers'. Throws UserError (kBadData) for a picture more
/// than 200 times as long as wide, which the models were never shown.
/// Throws UserError (kBadData) for a picture that is too long for its width.
void check_ratio(image::ImageSize size);

image::ImageSize smart_resize(image::ImageSize size, int64_t factor, PixelBudget budget);

}  // namespace vlmtrain::models::qwen2_vl
