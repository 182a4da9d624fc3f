#pragma once

#include <ATen/core/Tensor.h>

namespace vlmtrain::nn {

/// softmax(query · keyᵀ / sqrt(head_dim) + bias) · value, for biases that are learnt, such as relative positions.
///
/// `query` [batch, rows, heads, head_dim], `key` and `value` [batch, keys, heads, head_dim]; `bias` [batch, heads,
/// rows, keys] of the query's dtype, or with a first dimension of 1 for all of the batch alike; result [batch, rows,
/// heads, head_dim]. On CUDA the memory-efficient kernel, which no flash kernel is here; it keeps the bias for the
/// backward pass, and no scores. On the CPU plain products, which keep the weights [batch, heads, rows, keys].
at::Tensor biased_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& bias);

/// The same without a bias, of which neither kernel keeps scores or weights: on CUDA the memory-efficient one, on the
/// CPU the flash kernel.
at::Tensor batched_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

}  // namespace vlmtrain::nn
