#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace vlmtrain::nn {

/// How a packed stream of rows `[rows, …]` divides into segments that do not see each other: samples of a micro-batch,
/// or tiles of the vision tower. The lengths are known on the host, so that no step reads them back from the device.
struct Segments {
  std::vector<int64_t> lengths;  ///< rows of each segment, each > 0
  at::Tensor offsets;            ///< int32 [segments + 1], on the model's device: cumulated lengths, from 0
  int64_t max_length = 0;
  int64_t rows = 0;

  static Segments from_lengths(std::vector<int64_t> lengths, at::Device device);
  /// `count` segments of `length` rows each.
  static Segments uniform(int64_t count, int64_t length, at::Device device);

  bool is_uniform() const;
  Segments to(at::Device device) const;
};

}  // namespace vlmtrain::nn
