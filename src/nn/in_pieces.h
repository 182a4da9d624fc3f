#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "vlmtrain/nn/segments.h"

namespace vlmtrain::nn {

/// What a launch of CUDA's attention kernels takes at most: the segments, or the batch, are the second or third
/// dimension of its grid.
inline constexpr int64_t kMaxSegmentsPerLaunch = 65535;

/// Attention of some whole segments: their rows of query, key and value.
using SegmentAttention =
    std::function<at::Tensor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Segments&)>;

/// attend() of all rows, in calls of at most `max_segments` segments.
at::Tensor attend_chunked(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const Segments& segments, int64_t max_segments, const SegmentAttention& attend);

}  // namespace vlmtrain::nn
