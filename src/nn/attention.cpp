#include "vlmtrain/nn/attention.h"

#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/repeat_interleave.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

namespace {

double scale_of(const at::Tensor& query) {
  return 1.0 / std::sqrt(static_cast<double>(query.size(-1)));
}

/// query, key, value [rows of `count` equal segments, heads, head_dim]
at::Tensor cpu_flash(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t count,
                     bool causal) {
  const auto per_segment = [count](const at::Tensor& x) {
    return x.view({count, x.size(0) / count, x.size(1), x.size(2)}).transpose(1, 2);
  };
  const auto output = std::get<0>(
      at::_scaled_dot_product_flash_attention_for_cpu(per_segment(query), per_segment(key), per_segment(value),
                                                      /*dropout_p=*/0.0, causal, /*attn_mask=*/{}, scale_of(query)));
  return output.transpose(1, 2).reshape(query.sizes());
}

at::Tensor cpu_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const Segments& segments, bool causal) {
  if (segments.is_uniform()) {
    return cpu_flash(query, key, value, static_cast<int64_t>(segments.lengths.size()), causal);
  }
  const auto queries = query.split_with_sizes(segments.lengths);
  const auto keys = key.split_with_sizes(segments.lengths);
  const auto values = value.split_with_sizes(segments.lengths);
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < queries.size(); ++i) outputs.push_back(cpu_flash(queries[i], keys[i], values[i], 1, causal));
  return at::cat(outputs);
}

at::Tensor cuda_flash(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Segments& segments,
                      bool causal) {
  return std::get<0>(at::_flash_attention_forward(query, key, value, segments.offsets, segments.offsets,
                                                  segments.max_length, segments.max_length, /*dropout_p=*/0.0, causal,
                                                  /*return_debug_mask=*/false, scale_of(query)));
}

at::Tensor cuda_memory_efficient(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                 const Segments& segments, bool causal) {
  const int64_t group = query.size(1) / key.size(1);
  const auto expand = [group](const at::Tensor& x) {
    return (group == 1 ? x : at::repeat_interleave(x, group, 1)).unsqueeze(0);
  };
  constexpr int64_t kNoMask = 0;
  constexpr int64_t kCausalFromTopLeft = 1;
  const auto output = std::get<0>(at::_efficient_attention_forward(
      query.unsqueeze(0), expand(key), expand(value), /*bias=*/{}, segments.offsets, segments.offsets,
      segments.max_length, segments.max_length, /*dropout_p=*/0.0, causal ? kCausalFromTopLeft : kNoMask,
      /*compute_log_sumexp=*/true, scale_of(query)));
  return output.squeeze(0);
}

}  // namespace

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Segments& segments,
                     bool causal) {
  VLMTRAIN_CHECK(query.size(0) == segments.rows && query.size(1) % key.size(1) == 0,
                 "{} rows for segments of {}, {} heads for {} key-value heads", query.size(0), segments.rows,
                 query.size(1), key.size(1));
  if (!query.is_cuda()) return cpu_attention(query, key, value, segments, causal);
  if (query.scalar_type() == at::kFloat) return cuda_memory_efficient(query, key, value, segments, causal);
  return cuda_flash(query, key, value, segments, causal);
}

}  // namespace vlmtrain::nn
