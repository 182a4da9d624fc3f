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

/// How one axis is resampled: output i is Σ weight(i, k) · source[first + k]; of integers
/// (Σ weight(i, k) · source[first + k] + 2^(precision-1)) >> precision, clamped to a byte.
template <class Weight>
struct WeightTable {
  std::vector<SampleSpan> spans;  ///< one for each output sample
  std::vector<Weight> values;     ///< [outputs, stride]; zero after a span's count
  int64_t stride = 0;             ///< weights kept for each output, even
  int precision = 0;              ///< an integer's fractional bits

  const Weight* row(int64_t output) const { return values.data() + output * stride; }
};
using ExactWeights = WeightTable<double>;
using ResampleWeights = WeightTable<int16_t>;  ///< ATen's
using PillowWeights = WeightTable<int32_t>;

/// Those of an output sum to 1. Source of the formulas: Pillow's Resample.c.
ExactWeights make_exact_weights(int64_t input_size, int64_t output_size, Filter filter);

/// Source: normalize_coeffs_8bpc of Pillow's Resample.c.
PillowWeights make_pillow_weights(int64_t input_size, int64_t output_size, Filter filter);

/// Source of the formulas: ATen/native/cpu/UpSampleKernel.cpp, which follows Pillow's Resample.c but has 16-bit
/// weights.
ResampleWeights make_resample_weights(int64_t input_size, int64_t output_size, Filter filter);

}  // namespace vlmtrain::image
