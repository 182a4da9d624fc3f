#include "vlmtrain/image/resize.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <vector>

#include "image/resample_weights.h"
#include "image/transpose.h"
#include "image/vectorised.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

/// Samples that are resampled side by side with the same weights.
constexpr int64_t kLanes = 32;

inline uint8_t to_byte(int32_t sum, int precision) {
  return static_cast<uint8_t>(std::clamp(sum >> precision, 0, 255));
}

/// One output sample of each of kLanes neighbours; the k-th source samples lie together at source + k * stride.
template <class Weight>
inline __attribute__((always_inline)) void accumulate_lanes(const uint8_t* source, int64_t stride, int64_t count,
                                                            const Weight* weights, int precision, uint8_t* output) {
  std::array<int32_t, kLanes> sums;
  sums.fill(1 << (precision - 1));
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += weights[k] * source[k * stride + lane];
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) output[lane] = to_byte(sums[lane], precision);
}

template <class Weight>
inline __attribute__((always_inline)) uint8_t accumulate_sample(const uint8_t* source, int64_t stride, int64_t count,
                                                                const Weight* weights, int precision) {
  int32_t sum = 1 << (precision - 1);
  for (int64_t k = 0; k < count; ++k) sum += weights[k] * source[k * stride];
  return to_byte(sum, precision);
}

/// Resamples each column of `input` [rows, width] to `output` [spans, width].
template <class Weight>
inline __attribute__((always_inline)) void resample_columns_impl(const uint8_t* input, int64_t width,
                                                                 const WeightTable<Weight>& weights, uint8_t* output) {
  const int64_t vector_width = width / kLanes * kLanes;
  for (size_t y = 0; y < weights.spans.size(); ++y, output += width) {
    const auto [first, count] = weights.spans[y];
    const uint8_t* source = input + first * width;
    const Weight* values = weights.row(static_cast<int64_t>(y));
    for (int64_t x = 0; x < vector_width; x += kLanes) {
      accumulate_lanes(source + x, width, count, values, weights.precision, output + x);
    }
    for (int64_t x = vector_width; x < width; ++x)
      output[x] = accumulate_sample(source + x, width, count, values, weights.precision);
  }
}

/// Resamples each of the kLanes columns of `input` [samples, kLanes] to `output` [spans, kLanes].
template <class Weight>
inline __attribute__((always_inline)) void resample_lanes_impl(const uint8_t* input, const WeightTable<Weight>& weights,
                                                               uint8_t* output) {
  for (size_t i = 0; i < weights.spans.size(); ++i, output += kLanes) {
    const auto [first, count] = weights.spans[i];
    accumulate_lanes(input + first * kLanes, kLanes, count, weights.row(static_cast<int64_t>(i)), weights.precision,
                     output);
  }
}

// Templates cannot be made for several processors; these can.
VLMTRAIN_VECTORIZED void resample_columns(const uint8_t* input, int64_t width, const ResampleWeights& weights,
                                          uint8_t* output) {
  resample_columns_impl(input, width, weights, output);
}
VLMTRAIN_VECTORIZED void resample_columns(const uint8_t* input, int64_t width, const PillowWeights& weights,
                                          uint8_t* output) {
  resample_columns_impl(input, width, weights, output);
}
VLMTRAIN_VECTORIZED void resample_lanes(const uint8_t* input, const ResampleWeights& weights, uint8_t* output) {
  resample_lanes_impl(input, weights, output);
}
VLMTRAIN_VECTORIZED void resample_lanes(const uint8_t* input, const PillowWeights& weights, uint8_t* output) {
  resample_lanes_impl(input, weights, output);
}

/// Resamples each row of `input` [rows, width] to `output` [rows, spans]: kLanes rows at a time, turned so that the
/// samples of one column lie together. A row's neighbours have weights of their own, a column's share them.
template <class Weights>
void resample_rows(const uint8_t* input, int64_t rows, int64_t width, const Weights& weights, uint8_t* output) {
  const auto output_width = static_cast<int64_t>(weights.spans.size());
  std::vector<uint8_t> transposed(width * kLanes);
  std::vector<uint8_t> resampled(output_width * kLanes);
  for (int64_t y = 0; y < rows; y += kLanes) {
    const int64_t lanes = std::min(kLanes, rows - y);
    transpose_bytes(input + y * width, width, lanes, width, transposed.data(), kLanes);
    resample_lanes(transposed.data(), weights, resampled.data());
    transpose_bytes(resampled.data(), kLanes, output_width, lanes, output + y * output_width, output_width);
  }
}

/// How the weights of one axis are made.
template <class Weights>
using MakeWeights = Weights (*)(int64_t input_size, int64_t output_size, Filter filter);

template <class Weights>
at::Tensor resize_width(const at::Tensor& image, int64_t width, const Weights& weights) {
  at::Tensor result = at::empty({image.size(0), image.size(1), width}, image.options());
  resample_rows(image.const_data_ptr<uint8_t>(), image.size(0) * image.size(1), image.size(2), weights,
                result.mutable_data_ptr<uint8_t>());
  return result;
}

template <class Weights>
at::Tensor resize_height(const at::Tensor& image, int64_t height, const Weights& weights) {
  at::Tensor result = at::empty({image.size(0), height, image.size(2)}, image.options());
  for (int64_t channel = 0; channel < image.size(0); ++channel) {
    resample_columns(image.const_data_ptr<uint8_t>() + channel * image.stride(0), image.size(2), weights,
                     result.mutable_data_ptr<uint8_t>() + channel * result.stride(0));
  }
  return result;
}

void check_arguments(const at::Tensor& image, int64_t height, int64_t width) {
  VLMTRAIN_CHECK(image.scalar_type() == at::kByte && image.device().is_cpu() && image.dim() == 3 && image.numel() > 0,
                 "a picture to resize is uint8 [channels, height, width] on the CPU");
  VLMTRAIN_CHECK(height > 0 && width > 0, "no picture of {} x {} pixels", height, width);
}

template <class Weights>
at::Tensor resize_bytes(MakeWeights<Weights> weights, const at::Tensor& image, int64_t height, int64_t width,
                        Filter filter) {
  check_arguments(image, height, width);
  at::Tensor result = image.contiguous();
  if (result.size(2) != width) result = resize_width(result, width, weights(result.size(2), width, filter));
  if (result.size(1) != height) result = resize_height(result, height, weights(result.size(1), height, filter));
  return result;
}

uint8_t round_to_byte(double value) {
  constexpr double kRoundingOffset = 0.5 + 1e-6;
  return static_cast<uint8_t>(std::clamp(value + kRoundingOffset, 0.0, 255.0));
}

/// One channel, `input` [input_height, input_width] to `output` [spans of rows, spans of columns].
void resample_channel(const uint8_t* input, int64_t input_height, int64_t input_width, const ExactWeights& columns,
                      const ExactWeights& rows, uint8_t* output) {
  const size_t width = columns.spans.size();
  std::vector<double> horizontal(static_cast<size_t>(input_height) * width);
  for (int64_t y = 0; y < input_height; ++y) {
    for (size_t x = 0; x < width; ++x) {
      const auto [first, count] = columns.spans[x];
      const uint8_t* source = input + y * input_width + first;
      const double* weights = columns.row(static_cast<int64_t>(x));
      double sum = 0;
      for (int64_t k = 0; k < count; ++k) sum += weights[k] * source[k];
      horizontal[static_cast<size_t>(y) * width + x] = sum;
    }
  }
  std::vector<double> sums(width);
  for (size_t y = 0; y < rows.spans.size(); ++y) {
    const auto [first, count] = rows.spans[y];
    const double* weights = rows.row(static_cast<int64_t>(y));
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t k = 0; k < count; ++k) {
      const double* source = horizontal.data() + static_cast<size_t>(first + k) * width;
      for (size_t x = 0; x < width; ++x) sums[x] += weights[k] * source[x];
    }
    output = std::transform(sums.begin(), sums.end(), output, round_to_byte);
  }
}

}  // namespace

at::Tensor resize(const at::Tensor& image, int64_t height, int64_t width, Filter filter) {
  return resize_bytes(&make_resample_weights, image, height, width, filter);
}

at::Tensor resize_pillow(const at::Tensor& image, int64_t height, int64_t width, Filter filter) {
  return resize_bytes(&make_pillow_weights, image, height, width, filter);
}

at::Tensor resize_float(const at::Tensor& image, int64_t height, int64_t width, Filter filter) {
  check_arguments(image, height, width);
  const at::Tensor source = image.contiguous();
  const ExactWeights columns = make_exact_weights(source.size(2), width, filter);
  const ExactWeights rows = make_exact_weights(source.size(1), height, filter);
  at::Tensor result = at::empty({source.size(0), height, width}, source.options());
  for (int64_t channel = 0; channel < source.size(0); ++channel) {
    resample_channel(source.const_data_ptr<uint8_t>() + channel * source.stride(0), source.size(1), source.size(2),
                     columns, rows, result.mutable_data_ptr<uint8_t>() + channel * result.stride(0));
  }
  return result;
}

}  // namespace vlmtrain::image
