#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "vlmtrain/nn/layers/output_projection.h"

namespace vlmtrain::nn {

/// Weights and sums by task for linear_cross_entropy(), which adds to `sums` and
/// `feature_scale_gradients`, so several calls accumulate. All tensors are on the device of the
/// hidden states.
struct PerTaskLoss {
  at::Tensor task_one_hot;  ///< fp32 [tasks, labels]: 1 if the label belongs to the task, else 0
  at::Tensor weights;       ///< fp32 [labels], weight of each label's task in the loss; undefined: 1
  /// fp32 [tasks, 2]: sum of the labels' cross-entropy times `label_weights`, without the weights of
  /// tasks and not divided, and number of labels predicted correctly.
  at::Tensor sums;
  /// fp32 [tasks, features], or undefined to skip it: Σ over the task's rows of ∂loss/∂hidden ·
  /// hidden. If each feature of `hidden` were multiplied by a scale, this would be the gradient of
  /// the task's part of the loss with respect to the scales, at scale 1.
  at::Tensor feature_scale_gradients;
};

/// Returns Σ cross-entropy(logits, labels) / normalizer, an fp32 scalar.
///
/// `hidden` [labels, features] are the hidden states that predict the labels; `projection` gives
/// their logits; `labels` int64 [labels]. Logits exist for `chunk_rows` rows at a time. The forward
/// pass also computes the gradients of `hidden` and of the projection's weight; soft cap and softmax
/// are computed in fp32. The result may be differentiated once. If the projection's weight has a
/// GradientSink and is not fp16, the forward pass adds its gradient to the sum, and the backward pass
/// must begin with a gradient of 1. `label_weights` fp32 [labels] multiply the cross-entropy of each
/// label; undefined: all 1. `normalizer` is the sum of the label weights of the global batch, so the
/// losses of micro-batches add up. Throws InternalError without labels, or if the numbers of rows,
/// labels and weights differ.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const OutputProjection& projection, const at::Tensor& labels,
                                double normalizer, int64_t chunk_rows, const at::Tensor& label_weights = {});

/// Returns the same, with the labels also weighted and the sums updated as in `per_task`.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const OutputProjection& projection, const at::Tensor& labels,
                                double normalizer, int64_t chunk_rows, const PerTaskLoss& per_task,
                                const at::Tensor& label_weights = {});

/// The loss of predicted masks.
struct MaskLoss {
  at::Tensor loss;  ///< fp32 scalar with autograd graph
  at::Tensor sums;  ///< fp32 [2]: cross-entropy / `pixels` and Dice loss / `masks`, both without the loss weights
};

/// Returns `bce_weight` · Σ binary cross-entropy / `pixels` + `dice_weight` · Σ Dice loss /
/// `masks`.
///
/// `logits` fp32 [masks, height, width], resized bilinearly (align_corners = false) to the size of
/// `targets` uint8 [masks, H, W], 0 or 1. `sizes` holds, for each mask, the numbers of rows and
/// columns of the target that belong to the image; the rest is padding and ignored. The
/// cross-entropy is summed over pixels. The Dice loss of a mask is 1 − (2 Σ p g + ε) / (Σ p + Σ g +
/// ε) with probabilities p and ε = 1e-5, as MONAI's DiceLoss (Milletari et al. 2016, arXiv
/// 1606.04797, without squares). `pixels` and `masks` are the numbers of pixels and masks in the
/// global batch, so the losses of micro-batches add up. Throws InternalError if the numbers of
/// masks differ or a size exceeds its target.
///
/// Only one mask at a time is resized to the targets' size. The forward pass also computes the
/// gradient, which is saved at the size of the logits. The result may be differentiated once.
MaskLoss mask_loss(const at::Tensor& logits, const at::Tensor& targets,
                   const std::vector<std::array<int64_t, 2>>& sizes, double bce_weight, double dice_weight,
                   double pixels, double masks);

}  // namespace vlmtrain::nn
