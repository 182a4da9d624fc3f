#include "vlmtrain/nn/attention/attention.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "nn/attention/attention_kernel.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device_copy.h"

namespace vlmtrain::nn {

namespace {

bool has_flash_kernel(const at::Tensor& query) {
  return nn::has_flash_kernel(query.scalar_type(), query.size(-1), query.device());
}

/// Runs the CPU's flash kernel on `count` segments of equal length.
at::Tensor run_cpu_flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                   int64_t count, bool is_causal) {
  const auto split_segments = [count](const at::Tensor& x) {
    return x.view({count, x.size(0) / count, x.size(1), x.size(2)}).transpose(1, 2);
  };
  const at::Tensor output =
      attend(make_cpu_flash_kernel(is_causal), split_segments(query), split_segments(key), split_segments(value));
  return output.transpose(1, 2).reshape(query.sizes());
}

/// Runs the CPU's flash kernel on each segment, or on all at once if they have equal length.
at::Tensor run_cpu_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const Segments& segments, bool is_causal) {
  if (segments.is_uniform()) {
    return run_cpu_flash_attention(query, key, value, static_cast<int64_t>(segments.lengths.size()), is_causal);
  }
  const auto queries = query.split_with_sizes(segments.lengths);
  const auto keys = key.split_with_sizes(segments.lengths);
  const auto values = value.split_with_sizes(segments.lengths);
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < queries.size(); ++i)
    outputs.push_back(run_cpu_flash_attention(queries[i], keys[i], values[i], 1, is_causal));
  return at::cat(outputs);
}

VarlenArgs make_varlen_args(const Segments& segments, bool is_causal, std::optional<int64_t> window = std::nullopt) {
  return {.offsets = segments.offsets, .max_length = segments.max_length, .is_causal = is_causal, .window = window};
}

at::Tensor run_cuda_flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                    const Segments& segments, bool is_causal, std::optional<int64_t> window) {
  return attend(make_cuda_flash_kernel(make_varlen_args(segments, is_causal, window)), query, key, value);
}

at::Tensor run_cuda_memory_efficient_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                               const Segments& segments, bool is_causal) {
  const int64_t heads_per_group = query.size(1) / key.size(1);
  const auto expand_heads = [heads_per_group](const at::Tensor& x) {
    return (heads_per_group == 1 ? x : at::repeat_interleave(x, heads_per_group, 1)).unsqueeze(0);
  };
  return attend(make_cuda_memory_efficient_kernel(make_varlen_args(segments, is_causal)), query.unsqueeze(0),
                expand_heads(key), expand_heads(value))
      .squeeze(0);
}

/// Computes causal attention with a window within one segment: query i attends to keys i − window +
/// 1 to i. Processes blocks of `window` queries, which see at most 2 · window − 1 keys.
at::Tensor windowed_segment_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                      int64_t window) {
  const int64_t rows = query.size(0), key_value_heads = key.size(1), heads_per_group = query.size(1) / key_value_heads;
  std::vector<at::Tensor> outputs;
  for (int64_t first = 0; first < rows; first += window) {
    const int64_t count = std::min(window, rows - first);
    const int64_t first_key = std::max<int64_t>(first - window + 1, 0);
    const int64_t keys = first + count - first_key;
    // Entry [i, j] belongs to query first + i and key first_key + j.
    const at::Tensor is_visible = at::ones({count, keys}, query.options().dtype(at::kBool))
                                      .tril_(first - first_key)
                                      .triu_(first - first_key - window + 1);
    const at::Tensor queries_by_head =
        query.narrow(0, first, count)
            .view({count, key_value_heads, heads_per_group, -1})
            .permute({1, 2, 0, 3});  // [key_value_heads, heads_per_group, count, head_dim]
    const auto expand_keys = [&](const at::Tensor& x) {
      return x.narrow(0, first_key, keys).permute({1, 0, 2}).unsqueeze(1);
    };
    const at::Tensor scores =
        at::matmul(queries_by_head, expand_keys(key).transpose(-1, -2)) * compute_attention_scale(query);
    const at::Tensor weights =
        at::softmax(scores.masked_fill(is_visible.logical_not(), -std::numeric_limits<double>::infinity()), -1,
                    at::toOpMathType(query.scalar_type()));
    const at::Tensor output = at::matmul(weights.to(query.scalar_type()), expand_keys(value));
    outputs.push_back(output.permute({2, 0, 1, 3}).reshape({count, query.size(1), query.size(2)}));
  }
  return at::cat(outputs);
}

at::Tensor windowed_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const Segments& segments, int64_t window) {
  const auto queries = query.split_with_sizes(segments.lengths);
  const auto keys = key.split_with_sizes(segments.lengths);
  const auto values = value.split_with_sizes(segments.lengths);
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < queries.size(); ++i) {
    outputs.push_back(windowed_segment_attention(queries[i], keys[i], values[i], window));
  }
  return at::cat(outputs);
}

at::Tensor run_cpu_decode(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const CacheSlots& slots) {
  const int64_t key_value_heads = key.size(1), heads_per_group = query.size(1) / key_value_heads;
  std::vector<at::Tensor> outputs;
  for (int64_t i = 0; i < query.size(0); ++i) {
    const auto view_slot = [&](const at::Tensor& x) {
      const auto index = static_cast<size_t>(i);
      return x.narrow(0, slots.starts[index], slots.lengths[index]).unsqueeze(0).transpose(1, 2);
    };
    // The queries that share a key head become rows of that head, so its keys are read once.
    const at::Tensor grouped_query = query[i].view({1, key_value_heads, heads_per_group, -1});
    outputs.push_back(
        std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(grouped_query, view_slot(key), view_slot(value),
                                                                    /*dropout_p=*/0.0, /*is_causal=*/false,
                                                                    /*attn_mask=*/{}, compute_attention_scale(query)))
            .reshape({1, query.size(1), query.size(2)}));
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
}

at::Tensor run_cuda_flash_decode(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                 const CacheSlots& slots) {
  return std::get<0>(at::_flash_attention_forward(
      query, key, value, slots.cu_seqlens_q, slots.device_starts, /*max_q=*/1, slots.max_length, /*dropout_p=*/0.0,
      /*is_causal=*/false, /*return_debug_mask=*/false, compute_attention_scale(query), /*window_size_left=*/{},
      /*window_size_right=*/{}, /*seqused_k=*/slots.device_lengths));
}

at::Tensor run_cuda_memory_efficient_decode(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                            const CacheSlots& slots) {
  // The kernel does not support grouped queries, so the queries that share a key head become rows
  // of it.
  const int64_t key_value_heads = key.size(1), heads_per_group = query.size(1) / key_value_heads,
                head_dim = query.size(2);
  const at::Tensor grouped_query = query.view({-1, key_value_heads, heads_per_group, head_dim})
                                       .transpose(1, 2)
                                       .reshape({1, -1, key_value_heads, head_dim});
  constexpr int64_t kNoCustomMask = 0;
  const auto output = std::get<0>(at::_efficient_attention_forward(
      grouped_query, key.unsqueeze(0), value.unsqueeze(0), /*bias=*/{}, slots.cu_seqlens_q * heads_per_group,
      slots.device_starts,
      /*max_seqlen_q=*/heads_per_group, slots.max_length, /*dropout_p=*/0.0, kNoCustomMask,
      /*compute_log_sumexp=*/false, compute_attention_scale(query), /*seqlen_k=*/slots.device_lengths));
  return output.view({-1, heads_per_group, key_value_heads, head_dim}).transpose(1, 2).reshape(query.sizes());
}

/// Returns `bias` with rows that start at multiples of 16 elements, which the memory-efficient
/// kernel requires. The padding is hidden by a view.
at::Tensor align_bias_rows(const at::Tensor& bias) {
  constexpr int64_t kRowAlignment = 16;
  const int64_t keys = bias.size(-1);
  const int64_t padding = (kRowAlignment - keys % kRowAlignment) % kRowAlignment;
  if (padding == 0) return bias.contiguous();
  return at::constant_pad_nd(bias, {0, padding}).narrow(-1, 0, keys);
}

at::Tensor memory_efficient_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                      const std::optional<at::Tensor>& bias, double scale) {
  constexpr int64_t kNoCustomMask = 0;  // CustomMaskType of ATen's kernel
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
  return std::get<0>(at::_efficient_attention_forward(
      query, key, value, bias, /*cu_seqlens_q=*/{}, /*cu_seqlens_k=*/{}, query.size(1), key.size(1),
      /*dropout_p=*/0.0, kNoCustomMask, /*compute_log_sumexp=*/true, scale));
}

/// Computes biased_attention() with plain products.
at::Tensor composite_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const at::Tensor& bias, double scale) {
  const at::Tensor scores = at::matmul((query * scale).transpose(1, 2), key.permute({0, 2, 3, 1})) + bias;
  const at::Tensor weights = at::softmax(scores, -1);
  return at::matmul(weights, value.transpose(1, 2)).transpose(1, 2);
}

/// Throws UserError (kBadData) for heads that ATen's kernels for GPUs do not support: their rows must
/// be whole vectors of 16 bytes.
void check_gpu_head_dim(const at::Tensor& query) {
  const int64_t multiple = 16 / query.element_size();
  if (query.size(-1) % multiple == 0) return;
  throw data_error(
      "the model has attention heads of {} features; GPUs need a multiple of {}, so use another checkpoint or --device "
      "cpu",
      query.size(-1), multiple);
}

}  // namespace

Segments Segments::from_lengths(std::vector<int64_t> lengths, at::Device device) {
  Segments segments;
  segments.lengths = std::move(lengths);
  at::Tensor offsets = at::empty({static_cast<int64_t>(segments.lengths.size()) + 1}, at::kInt);
  auto* offset = offsets.mutable_data_ptr<int32_t>();
  *offset = 0;
  for (const int64_t length : segments.lengths) {
    VLMTRAIN_CHECK(length > 0, "expected a segment with at least one row, got {}", length);
    segments.rows += length;
    segments.max_length = std::max(segments.max_length, length);
    *++offset = static_cast<int32_t>(segments.rows);
  }
  segments.offsets = memory::copy_to_device(offsets, device);
  return segments;
}

Segments Segments::uniform(int64_t count, int64_t length, at::Device device) {
  Segments segments;
  segments.lengths.assign(static_cast<size_t>(count), length);
  segments.offsets = at::arange(0, (count + 1) * length, length, at::TensorOptions(at::kInt).device(device));
  segments.max_length = length;
  segments.rows = count * length;
  return segments;
}

bool Segments::is_uniform() const {
  return std::all_of(lengths.begin(), lengths.end(), [this](int64_t length) { return length == max_length; });
}

Segments Segments::to(at::Device device) const {
  Segments result = *this;
  result.offsets = memory::copy_to_device(offsets, device);
  return result;
}

CacheSlots CacheSlots::from_starts_and_lengths(std::vector<int64_t> starts, std::vector<int64_t> lengths,
                                               at::Device device) {
  VLMTRAIN_CHECK(starts.size() == lengths.size() && !lengths.empty(), "got {} starts and {} lengths of cache slots",
                 starts.size(), lengths.size());
  CacheSlots slots;
  slots.max_length = *std::ranges::max_element(lengths);
  auto bounds = starts;
  bounds.push_back(starts.back() + lengths.back());
  slots.device_starts = memory::copy_to_device(bounds, device, at::kInt);
  slots.device_lengths = memory::copy_to_device(lengths, device, at::kInt);
  slots.cu_seqlens_q = at::arange(std::ssize(bounds), at::TensorOptions(at::kInt).device(device));
  slots.starts = std::move(starts);
  slots.lengths = std::move(lengths);
  return slots;
}

at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const CacheSlots& slots) {
  VLMTRAIN_CHECK(query.size(0) == std::ssize(slots.lengths) && query.size(1) % key.size(1) == 0,
                 "attention got {} rows for {} slots and {} heads for {} key-value heads", query.size(0),
                 slots.lengths.size(), query.size(1), key.size(1));
  if (!query.is_cuda()) return run_cpu_decode(query, key, value, slots);
  if (has_flash_kernel(query)) return run_cuda_flash_decode(query, key, value, slots);
  return run_cuda_memory_efficient_decode(query, key, value, slots);
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Segments& segments,
                     bool is_causal, std::optional<int64_t> window) {
  VLMTRAIN_CHECK(query.size(0) == segments.rows && query.size(1) % key.size(1) == 0,
                 "attention got {} rows for segments of {} rows and {} heads for {} key-value heads", query.size(0),
                 segments.rows, query.size(1), key.size(1));
  VLMTRAIN_CHECK(!window || (is_causal && *window > 0),
                 "a sliding window requires causal attention and at least one row");
  if (window && segments.max_length <= *window) window.reset();
  if (query.is_cuda()) check_gpu_head_dim(query);
  const bool uses_flash_kernel = query.is_cuda() && has_flash_kernel(query);
  if (window && !uses_flash_kernel) return windowed_attention(query, key, value, segments, *window);
  if (query.is_cuda()) {
    return attend_chunked(query, key, value, segments, kMaxSegmentsPerLaunch,
                          [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Segments& chunk) {
                            return uses_flash_kernel ? run_cuda_flash_attention(q, k, v, chunk, is_causal, window)
                                                     : run_cuda_memory_efficient_attention(q, k, v, chunk, is_causal);
                          });
  }
  return run_cpu_attention(query, key, value, segments, is_causal);
}

at::Tensor biased_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& bias) {
  VLMTRAIN_CHECK(bias.dim() == 4 && (bias.size(0) == 1 || bias.size(0) == query.size(0)) &&
                     bias.size(1) == query.size(2) && bias.size(2) == query.size(1) && bias.size(3) == key.size(1),
                 "a bias with {} dimensions does not match {} rows and {} keys", bias.dim(), query.size(1),
                 key.size(1));
  const double scale = compute_attention_scale(query);
  if (!query.is_cuda()) return composite_attention(query, key, value, bias, scale);
  return memory_efficient_attention(query, key, value, align_bias_rows(bias).expand({query.size(0), -1, -1, -1}),
                                    scale);
}

at::Tensor batched_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const double scale = compute_attention_scale(query);
  if (query.is_cuda()) return memory_efficient_attention(query, key, value, /*bias=*/std::nullopt, scale);
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query.transpose(1, 2), key.transpose(1, 2),
                                                                     value.transpose(1, 2), /*dropout_p=*/0.0,
                                                                     /*is_causal=*/false, /*attn_mask=*/{}, scale))
      .transpose(1, 2);
}

}  // namespace vlmtrain::nn
