#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "nn/attention_kernel.h"
#include "vlmtrain/nn/attention/span_attention.h"

namespace vlmtrain::nn {

/// Rows of a stream that see more keys than one kernel shows them.
struct ExtraKeys {
  at::Tensor query_rows;  ///< int64 [n], rows of the stream whose queries see more; each once
  at::Tensor key_rows;    ///< int64 [n], rows of the stream whose keys and values they see; each once
};

/// What rows of spans see of their span after themselves, in an order in which that is causal attention of one row to
/// the same number of rows: of each span all rows but the last ask, all but the first are seen, both from the last one
/// backwards. REQUIRES: spans of more than one row.
ExtraKeys make_ahead_keys(const BidirectionalSpans& spans);

/// The attention of a stream to two sets of keys without a common one: those that `first` shows all rows, and those
/// that `second`, run over the rows of `extra`, shows some. Both kernels take and give [rows, heads, head_dim] and,
/// next to the output, the logarithms of the sums that they divided by, [heads, rows].
std::shared_ptr<const AttentionKernel> make_joined_kernel(std::shared_ptr<const AttentionKernel> first,
                                                          std::shared_ptr<const AttentionKernel> second,
                                                          ExtraKeys extra);

}  // namespace vlmtrain::nn
