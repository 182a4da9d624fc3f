#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace vlmtrain::evaluation {

/// A window of a mask's rows and columns.
struct Window {
  int64_t top, left, height, width;
};

/// Of each pixel of the window, row by row, the square of the distance in pixels to the nearest one of `points` (uint8
/// [height, width], contiguous, on the CPU), exactly and in time linear in the pixels.
/// Source: Felzenszwalb and Huttenlocher, Distance Transforms of Sampled Functions, 2012.
/// REQUIRES: a point in the window.
std::vector<int64_t> compute_squared_distances(const at::Tensor& points, const Window& window);

}  // namespace vlmtrain::evaluation
