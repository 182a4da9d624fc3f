#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "vlmtrain/data/masks.h"
#include "vlmtrain/image/decode.h"

namespace vlmtrain::evaluation {

/// A mask as the model drew it, beside the true one: uint8 [height, width] of 0 and 1, of their picture's size.
struct MaskPrediction {
  std::string structure{};  ///< what it shows; may be empty
  int64_t image = 0;        ///< which of the record's pictures it lies in
  at::Tensor predicted{};
  at::Tensor truth{};
  double dice = 0;
};

/// The mask of a picture of size `image_size` in logits fp32 [height, width] over a square of `side` pixels, of which
/// it filled `filled`: brought to the square's size, cut, and brought to the picture's, each time bilinearly, and 1
/// where the logit is above 0 (as SAM's postprocess_masks).
at::Tensor postprocess_mask(const at::Tensor& logits, int64_t side, const data::ValidRegion& filled,
                            image::ImageSize image_size);

}  // namespace vlmtrain::evaluation
