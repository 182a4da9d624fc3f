#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace vlmtrain::nn {

struct MaskLoss {
  at::Tensor loss;  ///< fp32 scalar, with its graph
  at::Tensor sums;  ///< fp32 [2]: cross-entropy and Dice of these masks, neither weighted, each divided as in the loss
};

/// `bce_weight` · Σ binary cross-entropy / `pixels` + `dice_weight` · Σ Dice / `masks` of masks that are drawn as
/// logits.
///
/// `logits` fp32 [masks, height, width]; `targets` uint8 [masks, H, W], 0 or 1, to whose size the logits of a mask are
/// resized bilinearly (align_corners = false). `sizes` says how many rows and columns of each target are a picture's;
/// what lies beyond is padding and counts nothing. The cross-entropy is summed over pixels. The Dice of a mask is 1 −
/// (2 Σ p g + ε) / (Σ p + Σ g + ε) with probabilities p and ε = 1e-5: MONAI's DiceLoss (Milletari et al. 2016, arXiv
/// 1606.04797, without its squares).
/// `pixels` and `masks` are those of the whole global batch, so that the losses of micro-batches add up.
///
/// One mask at a time exists at the targets' size. Its gradient is computed in the same pass and kept at the logits'.
MaskLoss mask_loss(const at::Tensor& logits, const at::Tensor& targets,
                   const std::vector<std::array<int64_t, 2>>& sizes, double bce_weight, double dice_weight,
                   double pixels, double masks);

}  // namespace vlmtrain::nn
