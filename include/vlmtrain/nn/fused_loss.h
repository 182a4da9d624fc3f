#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vlmtrain::nn {

/// Σ cross-entropy(hidden · weightᵀ, labels) / normalizer, as an fp32 scalar tensor.
///
/// `hidden` [labels, features] are the hidden states that predict the labels (nothing else is projected to the
/// vocabulary), `weight` [vocabulary, features], `labels` int64 [labels]. The logits exist for `chunk_rows` rows at a
/// time only; the gradients of `hidden` and `weight` are computed in the same pass, in fp32 from logits to softmax.
/// `normalizer` is the number of label tokens of the whole global batch, so that the losses of micro-batches add up.
/// REQUIRES: at least one label.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                double normalizer, int64_t chunk_rows);

}  // namespace vlmtrain::nn
