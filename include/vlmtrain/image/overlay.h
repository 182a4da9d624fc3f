#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace vlmtrain::image {

/// A mask to draw on an image.
struct OverlayMask {
  at::Tensor mask;               ///< uint8 [height, width] of the image, on the CPU; nonzero counts as set
  std::array<uint8_t, 3> color;  ///< RGB
  bool is_filled;                ///< false: draw only the outline
};

/// Returns a copy of an image, uint8 [3, height, width] RGB on the CPU, with masks drawn on it one
/// after another, for reports. Filled masks are blended with 40 % of their color. Outlines lie
/// within the mask; their width is 1/256 of the image's height, at least a pixel.
at::Tensor draw_masks(const at::Tensor& image, const std::vector<OverlayMask>& masks);

/// Returns a copy of an image with predicted masks, filled in orange and then in further colors,
/// and true masks, outlined in green.
at::Tensor draw_mask_comparison(const at::Tensor& image, const std::vector<at::Tensor>& predictions,
                                const std::vector<at::Tensor>& ground_truths);

}  // namespace vlmtrain::image
