#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace vlmtrain::image {

struct OverlayMask {
  at::Tensor mask;               ///< uint8 [height, width] of the picture, on the CPU; anything but 0 belongs to it
  std::array<uint8_t, 3> color;  ///< RGB
  bool is_filled;                ///< false: only its outline is drawn
};

/// A picture, uint8 [3, height, width] RGB on the CPU, with masks laid on it one after another, for people to look at:
/// a filled one as 40 % of its colour, and all with an outline within the mask, a 256th of the picture's height wide
/// but at least a pixel. The picture itself is not changed.
at::Tensor draw_masks(const at::Tensor& image, const std::vector<OverlayMask>& masks);

/// The same of a model's masks, filled in orange first and each further one in another colour, and of the true ones,
/// outlined in green.
at::Tensor draw_mask_comparison(const at::Tensor& image, const std::vector<at::Tensor>& predictions,
                                const std::vector<at::Tensor>& ground_truths);

}  // namespace vlmtrain::image
