#include "vlmtrain/nn/biased_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "nn/attention_scale.h"
#include "nn/in_pieces.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

namespace {

/// A view of `bias` whose rows begin at multiples of 16 elements, as the kernel reads them.
at::Tensor align_rows(const at::Tensor& bias) {
  constexpr int64_t kAlignment = 16;
  const int64_t keys = bias.size(-1);
  const int64_t padding = (kAlignment - keys % kAlignment) % kAlignment;
  if (padding == 0) return bias.contiguous();
  return at::constant_pad_nd(bias, {0, padding}).narrow(-1, 0, keys);
}

at::Tensor memory_efficient_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                      const std::optional<at::Tensor>& bias, double scale) {
  constexpr int64_t kNoMask = 0;
  if (query.size(0) > kMaxSegmentsPerLaunch) {
    std::vector<at::Tensor> outputs;
    for (int64_t first = 0; first < query.size(0); first += kMaxSegmentsPerLaunch) {
      const int64_t count = std::min(kMaxSegmentsPerLaunch, query.size(0) - first);
      const auto slice = [&](const at::Tensor& batch) { return batch.narrow(0, first, count); };
      outputs.push_back(memory_efficient_attention(slice(query), slice(key), slice(value),
                                                   bias ? std::optional(slice(*bias)) : bias, scale));
    }
    return at::cat(outputs);
  }
  return std::get<0>(at::_efficient_attention_forward(query, key, value, bias, /*cu_seqlens_q=*/{}, /*cu_seqlens_k=*/{},
                                                      query.size(1), key.size(1),
                                                      /*dropout_p=*/0.0, kNoMask, /*compute_log_sumexp=*/true, scale));
}

at::Tensor composite_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const at::Tensor& bias, double scale) {
  const at::Tensor scores = at::matmul((query * scale).transpose(1, 2), key.permute({0, 2, 3, 1})) + bias;
  const at::Tensor weights = at::softmax(scores, -1);
  return at::matmul(weights, value.transpose(1, 2)).transpose(1, 2);
}

}  // namespace

at::Tensor biased_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& bias) {
  VLMTRAIN_CHECK(bias.dim() == 4 && (bias.size(0) == 1 || bias.size(0) == query.size(0)) &&
                     bias.size(1) == query.size(2) && bias.size(2) == query.size(1) && bias.size(3) == key.size(1),
                 "a bias of {} dimensions for {} rows and {} keys", bias.dim(), query.size(1), key.size(1));
  const double scale = attention_scale(query);
  if (!query.is_cuda()) return composite_attention(query, key, value, bias, scale);
  return memory_efficient_attention(query, key, value, align_rows(bias).expand({query.size(0), -1, -1, -1}), scale);
}

at::Tensor batched_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const double scale = attention_scale(query);
  if (query.is_cuda()) return memory_efficient_attention(query, key, value, /*bias=*/std::nullopt, scale);
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query.transpose(1, 2), key.transpose(1, 2),
                                                                     value.transpose(1, 2), /*dropout_p=*/0.0,
                                                                     /*is_causal=*/false, /*attn_mask=*/{}, scale))
      .transpose(1, 2);
}

}  // namespace vlmtrain::nn
