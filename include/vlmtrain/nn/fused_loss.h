#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::nn {

/// Rows of logits that exist at a time where nothing else is asked for: few beside what the blocks of a model keep,
/// with a vocabulary of 152,000 too, and many enough for a product to be as fast as it gets.
inline constexpr int64_t kDefaultLossChunkRows = 512;

/// What linear_cross_entropy weighs and sums up by the task of each label. Sums are added to, so that those of several
/// calls are those of all their labels. All tensors are on the device of the hidden states.
struct PerTaskLoss {
  at::Tensor task_one_hot;  ///< fp32 [tasks, labels]: 1 where the label is the task's, else 0
  at::Tensor weights;       ///< fp32 [labels], what each label's cross-entropy counts in the loss; undefined: 1
  /// fp32 [tasks, 2]: the sum of the labels' cross-entropy, neither weighted nor divided, and the number of labels that
  /// no other token is more likely than.
  at::Tensor sums;
  /// fp32 [tasks, features], or undefined: not wanted. The gradient of the task's share of the loss with respect to a
  /// scale of each feature of `hidden` at 1, which is Σ over the task's rows of ∂loss/∂hidden · hidden.
  at::Tensor scale_gradients;
};

/// Σ cross-entropy(hidden · weightᵀ, labels) / normalizer, as an fp32 scalar tensor.
///
/// `hidden` [labels, features] are the hidden states that predict the labels (nothing else is projected to the
/// vocabulary), `weight` [vocabulary, features], `labels` int64 [labels]. The logits exist for `chunk_rows` rows at a
/// time only; the gradients of `hidden` and `weight` are computed in the same pass, in fp32 from logits to softmax.
/// `normalizer` is the number of label tokens of the whole global batch, so that the losses of micro-batches add up.
/// REQUIRES: at least one label.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                double normalizer, int64_t chunk_rows);

/// The same with weights and sums by task.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                double normalizer, int64_t chunk_rows, const PerTaskLoss& per_task);

}  // namespace vlmtrain::nn
