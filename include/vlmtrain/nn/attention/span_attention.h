#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "vlmtrain/nn/segments.h"

namespace vlmtrain::nn {

/// Spans of rows of a packed stream whose rows see each other both ways: the tokens of an image.
struct BidirectionalSpans {
  at::Tensor rows{};  ///< int64 [spans · length], on the model's device: one span after the other, the rows of each in
                      ///< order, without a gap and within one segment. Undefined: there are none
  int64_t length = 0;  ///< rows of a span
};

/// Causal attention within each segment of a packed stream, in which rows of a span also see those of their span that
/// lie after them (Gemma Team 2025, arXiv 2503.19786). A row sees the last `window` rows up to itself, those of its own
/// span too, and all that lie after it in its span, however many: transformers' create_masks_for_vision_model.
///
/// What a row sees is two sets of keys that have none in common: those up to itself, which is attention(), and those
/// after it. In the reversed order of a span's rows the second is causal attention as well, of all rows but the last to
/// all but the first. So on CUDA in 16 bits two runs of the variable-length flash kernel are joined by the logarithms
/// of their sums, and no mask is there; the second run reads 2 · spans · (length − 1) rows. The backward pass runs both
/// kernels with the joined output and sums, which makes each one's gradients those of the whole softmax (Dao 2023,
/// arXiv 2307.08691, section 3.1). Where there is no such kernel (the CPU; on CUDA fp32, and fp16 below sm_80), each
/// segment has a mask of its own, [rows, rows].
///
/// One object serves all blocks of a forward pass that have the same window.
class SpanAttention {
 public:
  /// `options`: device and dtype of what it will be given.
  SpanAttention(Segments segments, std::optional<int64_t> window, const BidirectionalSpans& spans,
                const at::TensorOptions& options);

  /// Shapes and scale as attention().
  at::Tensor operator()(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) const;

 private:
  at::Tensor attend_with_masks(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) const;

  Segments segments_;
  std::optional<int64_t> window_;
  bool has_spans_;
  // For the flash kernel: of each span all rows but the last, all but the first, both from the last one backwards.
  at::Tensor query_rows_, key_rows_;  // int64 [spans · (length − 1)]
  Segments ahead_segments_;
  // For the others: what is added to the scores of each segment.
  std::vector<at::Tensor> masks_;
};

}  // namespace vlmtrain::nn
