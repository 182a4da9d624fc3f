#include "vlmtrain/nn/attention/span_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "nn/attention/attention_kernel.h"
#include "nn/attention/packed_attention.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device_copy.h"
#include "vlmtrain/nn/attention/attention.h"

namespace vlmtrain::nn {

namespace {

/// The memory-efficient kernel on CUDA requires the row stride of a mask to be a multiple of this
/// number of elements.
constexpr int64_t kMaskAlignment = 16;

/// Returns the masks [queries, keys] of the segments: 0 where a key is visible, else −∞.
std::vector<at::Tensor> make_attention_masks(const Segments& segments, std::optional<int64_t> window,
                                             const BidirectionalSpans& spans, const at::TensorOptions& options) {
  const auto index_options = options.dtype(at::kLong);
  std::vector<int64_t> span_ids;
  for (size_t i = 0; i < spans.lengths.size(); ++i) {
    span_ids.insert(span_ids.end(), static_cast<size_t>(spans.lengths[i]), static_cast<int64_t>(i));
  }
  const at::Tensor row_span_ids = at::full({segments.rows}, -1, index_options)
                                      .index_copy_(0, spans.rows, memory::copy_to_device(span_ids, options.device()));
  std::vector<at::Tensor> masks;
  int64_t first = 0;
  for (const int64_t length : segments.lengths) {
    const at::Tensor position = at::arange(length, index_options);
    const at::Tensor distance =
        position.unsqueeze(0) - position.unsqueeze(1);  // position of the key minus position of the query
    const at::Tensor segment_span_ids = row_span_ids.narrow(0, first, length);
    // Bitwise operators, because the meta device, which dry runs on the host use, has no logical
    // ones.
    const at::Tensor is_in_same_span =
        (segment_span_ids.unsqueeze(0) == segment_span_ids.unsqueeze(1)) & (segment_span_ids.unsqueeze(0) >= 0);
    at::Tensor is_visible = (distance <= 0) | is_in_same_span;
    if (window) is_visible = is_visible & (distance > -*window);
    const at::Tensor mask =
        at::zeros({length, (length + kMaskAlignment - 1) / kMaskAlignment * kMaskAlignment}, options);
    masks.push_back(mask.narrow(1, 0, length));
    masks.back().masked_fill_(is_visible.bitwise_not(), -std::numeric_limits<double>::infinity());
    first += length;
  }
  return masks;
}

/// Computes attention with `mask` within one segment.
at::Tensor attend_masked(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& mask) {
  if (query.is_cuda()) {
    const int64_t group = query.size(1) / key.size(1);  // the kernel does not support grouped queries
    const auto expand_heads = [group](const at::Tensor& x) { return at::repeat_interleave(x, group, 1).unsqueeze(0); };
    return attend(make_cuda_masked_kernel(mask), query.unsqueeze(0), expand_heads(key), expand_heads(value)).squeeze(0);
  }
  const auto move_heads_first = [](const at::Tensor& x) { return x.unsqueeze(0).transpose(1, 2); };
  return attend(make_cpu_masked_kernel(mask), move_heads_first(query), move_heads_first(key), move_heads_first(value))
      .transpose(1, 2)
      .squeeze(0);
}

/// Returns whether any row has later rows in its span.
bool has_future_keys(const BidirectionalSpans& spans) {
  return spans.rows.defined() && std::ranges::any_of(spans.lengths, [](int64_t length) { return length > 1; });
}

/// Returns the number of future keys of each span that has any.
std::vector<int64_t> count_future_keys(const BidirectionalSpans& spans) {
  std::vector<int64_t> counts;
  for (const int64_t length : spans.lengths) {
    if (length > 1) counts.push_back(length - 1);
  }
  return counts;
}

}  // namespace

SpanAttention::SpanAttention(Segments segments, std::optional<int64_t> window, const BidirectionalSpans& spans,
                             int64_t head_dim, const at::TensorOptions& options)
    : segments_(std::move(segments)), window_(window), has_spans_(has_future_keys(spans)) {
  if (window_ && segments_.max_length <= *window_) window_.reset();
  if (!has_spans_) return;
  const int64_t num_rows = std::accumulate(spans.lengths.begin(), spans.lengths.end(), int64_t{0});
  VLMTRAIN_CHECK(spans.rows.numel() == num_rows, "{} rows for spans of {} rows", spans.rows.numel(), num_rows);
  const bool has_flash = options.device().is_cuda() &&
                         has_flash_kernel(c10::typeMetaToScalarType(options.dtype()), head_dim, options.device());
  // The memory-efficient kernel has no window.
  if (has_flash || (options.device().is_cuda() && !window_)) {
    ExtraKeys future_keys = make_future_keys(spans);
    const Segments future_segments = Segments::from_lengths(count_future_keys(spans), options.device());
    VLMTRAIN_CHECK(std::ssize(segments_.lengths) <= kMaxSegmentsPerLaunch &&
                       std::ssize(future_segments.lengths) <= kMaxSegmentsPerLaunch,
                   "{} samples with {} images exceed the limit of {} per launch", segments_.lengths.size(),
                   future_segments.lengths.size(), kMaxSegmentsPerLaunch);
    const auto make_kernel = [&](const Segments& of, std::optional<int64_t> kernel_window) {
      return has_flash
                 ? make_cuda_flash_kernel(
                       {.offsets = of.offsets, .max_length = of.max_length, .is_causal = true, .window = kernel_window})
                 : make_cuda_packed_memory_efficient_kernel(of);
    };
    merged_kernel_ =
        make_combined_kernel(make_kernel(segments_, window_),
                             make_kernel(future_segments, /*kernel_window=*/std::nullopt), std::move(future_keys));
  } else {
    segment_masks_ = make_attention_masks(segments_, window_, spans, options);
  }
}

at::Tensor SpanAttention::attend_with_masks(const at::Tensor& query, const at::Tensor& key,
                                            const at::Tensor& value) const {
  const auto queries = query.split_with_sizes(segments_.lengths);
  const auto keys = key.split_with_sizes(segments_.lengths);
  const auto values = value.split_with_sizes(segments_.lengths);
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < segment_masks_.size(); ++i)
    outputs.push_back(attend_masked(queries[i], keys[i], values[i], segment_masks_[i]));
  return at::cat(outputs);
}

at::Tensor SpanAttention::operator()(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) const {
  if (!has_spans_) return attention(query, key, value, segments_, /*is_causal=*/true, window_);
  VLMTRAIN_CHECK(query.size(0) == segments_.rows && query.size(1) % key.size(1) == 0,
                 "attention got {} rows for segments of {} rows and {} heads for {} key-value heads", query.size(0),
                 segments_.rows, query.size(1), key.size(1));
  if (!segment_masks_.empty()) return attend_with_masks(query, key, value);
  return attend(merged_kernel_, query, key, value);
}

}  // namespace vlmtrain::nn
