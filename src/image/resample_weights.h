#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/image/resize.h"

namespace vlmtrain::image {

/// The source samples that make one output sample: `count` of them from `first` on.
struct SampleSpan {
  int64_t first;
  int64_t count;
};

/// How one axis is resampled, in ATen's integer arithmetic: output i is
/// (Σ weight(i, k) · source[first + k] + 2^(precision-1)) >> precision, clamped to a byte.
struct ResampleWeights {
  std::vector<SampleSpan> spans;  ///< one for each output sample
  std::vector<int16_t> values;    ///< [outputs, stride]; zero after a span's count
  int64_t stride = 0;             ///< weights kept for each output, even
  int precision = 0;              ///< the weights' fractional bits

  const int16_t* of(int64_t output) const { return values.data() + output * stride; }
};

/// Source of the formulas: ATen/native/cpu/UpSampleKernel.cpp, which follows Pillow's Resample.c but has 16-bit
/// weights.
ResampleWeights resample_weights(int64_t input_size, int64_t output_size, Filter filter);

}  // namespace vlmtrain::image
