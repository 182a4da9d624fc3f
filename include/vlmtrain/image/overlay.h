#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "vlmtrain/image/points.h"

namespace vlmtrain::image {

/// A mask to draw on an image.
struct OverlayMask {
  at::Tensor mask;               ///< uint8 [height, width], the image's size, on the CPU; nonzero pixels count as set
  std::array<uint8_t, 3> color;  ///< RGB
  bool is_filled;                ///< whether to blend the interior with the color too; the outline is always drawn
};

/// Returns a copy of an image, uint8 [3, height, width] RGB on the CPU, with masks drawn on it in
/// order, for reports. Filled masks are blended with 40 % of their color. Outlines lie
/// within the mask. Their width is 1/256 of the image's height, at least one pixel.
at::Tensor draw_masks(const at::Tensor& image, const std::vector<OverlayMask>& masks);

/// Returns a copy of an image with predicted masks and true masks drawn as draw_masks() does.
/// Predictions are filled, the first in orange, the others in further colors. Ground truths are
/// outlined in green. Arguments have the types of draw_masks().
at::Tensor draw_mask_comparison(const at::Tensor& image, const std::vector<at::Tensor>& predictions,
                                const std::vector<at::Tensor>& ground_truths);

/// A box or a point to draw on an image.
struct OverlayBox {
  Box box;                       ///< in pixels of the image
  std::array<uint8_t, 3> color;  ///< RGB
};

/// The colors of predicted and true boxes, as those of masks.
inline constexpr std::array<uint8_t, 3> kPredictedBoxColor{255, 140, 0}, kTrueBoxColor{0, 210, 90};

/// Returns a copy of an image, uint8 [3, height, width] RGB on the CPU, with boxes outlined in order,
/// and points as crosses. Outlines lie within the box. Their width is 1/128 of the image's shorter
/// side, at least one pixel. Parts outside of the image are not drawn.
at::Tensor draw_boxes(const at::Tensor& image, const std::vector<OverlayBox>& boxes);

}  // namespace vlmtrain::image
