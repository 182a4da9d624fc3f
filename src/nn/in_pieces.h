#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "vlmtrain/nn/segments.h"

namespace vlmtrain::nn {

/// What a launch of CUDA's attention kernels takes at most: the segments, or the batch, are the second or third
/// dimension of its grid.
inline constexpr int64_t kMostSegmentsOfALaunch = 65535;

/// Attention of some whole segments: their rows of query, key and value.
using AttendSegments =
    std::function<at::Tensor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Segments&)>;

/// attend() of all rows, in calls of at most `most` segments.
at::Tensor attend_in_pieces(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const Segments& segments, int64_t most, const AttendSegments& attend);

}  // namespace vlmtrain::nn
