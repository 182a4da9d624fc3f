#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "vlmtrain/nn/attention/attention.h"

namespace vlmtrain::nn {

class AttentionKernel;

/// Spans of rows of a packed stream. The rows of a span, the tokens of an image, attend to one
/// another in both directions.
struct BidirectionalSpans {
  at::Tensor rows{};  ///< int64 [sum of lengths] on the model's device, span by span in ascending order; a span is
                      ///< contiguous and within one segment. Undefined: no spans
  std::vector<int64_t> lengths{};  ///< rows of each span
};

/// Causal attention within each segment of a packed stream in which the rows of a span also attend
/// to the later rows of their span (Gemma Team 2025, arXiv 2503.19786). With a window, a row
/// attends to the last `window` rows including itself and to all later rows of its span, as in
/// transformers' create_masks_for_vision_model.
///
/// The keys of a row are two disjoint sets: the keys up to the row itself, as in attention(), and
/// the later keys of its span. With rows in reversed order, attention to the second set is causal:
/// its queries are all rows of the span except the last, its keys all except the first. On CUDA, two
/// runs of a kernel are therefore merged by their log-sum-exps, without a mask: of the flash kernel
/// or, where it does not run (fp32; below sm_80; heads above 256 features), of the memory-efficient
/// kernel. The second run reads twice the rows of the spans. In the backward pass both runs get the
/// merged output and log-sum-exps, which makes their gradients those of the whole softmax (Dao 2023,
/// arXiv 2307.08691, section 3.1). On the CPU, and on CUDA for a window without the flash kernel,
/// each segment has a mask [rows, rows].
///
/// One object serves all blocks of a forward pass that have the same window. Immutable.
class SpanAttention {
 public:
  /// `head_dim`: features of a head. `options`: device and dtype of query, key and value. Throws InternalError if the
  /// lengths of `spans` do not add up to its rows, or if there are too many samples or images for one launch.
  SpanAttention(Segments segments, std::optional<int64_t> window, const BidirectionalSpans& spans, int64_t head_dim,
                const at::TensorOptions& options);

  /// Computes the attention; shapes and scale as in attention().
  at::Tensor operator()(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) const;

 private:
  at::Tensor attend_with_masks(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) const;

  Segments segments_;
  std::optional<int64_t> window_;
  bool has_spans_;
  // One of the two exists if there are spans.
  std::shared_ptr<const AttentionKernel> merged_kernel_;
  std::vector<at::Tensor> segment_masks_;  // of each segment, added to its scores
};

}  // namespace vlmtrain::nn
