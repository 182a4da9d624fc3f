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
inline __attribute__((always_inline)) void weigh_lanes(const uint8_t* source, int64_t stride, int64_t count,
                                                       const Weight* weights, int precision, uint8_t* out) {
  std::array<int32_t, kLanes> sums;
  sums.fill(1 << (precision - 1));
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += weights[k] * source[k * stride + lane];
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) out[lane] = to_byte(sums[lane], precision);
}

template <class Weight>
inline __attribute__((always_inline)) uint8_t weigh_one(const uint8_t* source, int64_t stride, int64_t count,
                                                        const Weight* weights, int precision) {
  int32_t sum = 1 << (precision - 1);
  for (int64_t k = 0; k < count; ++k) sum += weights[k] * source[k * stride];
  return to_byte(sum, precision);
}

/// Resamples each column of `in` [rows, width] to `out` [spans, width].
template <class Weight>
inline __attribute__((always_inline)) void weigh_columns(const uint8_t* in, int64_t width,
                                                         const WeightTable<Weight>& weights, uint8_t* out) {
  const int64_t whole = width / kLanes * kLanes;
  for (size_t y = 0; y < weights.spans.size(); ++y, out += width) {
    const auto [first, count] = weights.spans[y];
    const uint8_t* source = in + first * width;
    const Weight* values = weights.of(static_cast<int64_t>(y));
    for (int64_t x = 0; x < whole; x += kLanes) {
      weigh_lanes(source + x, width, count, values, weights.precision, out + x);
    }
    for (int64_t x = whole; x < width; ++x) out[x] = weigh_one(source + x, width, count, values, weights.precision);
  }
}

/// Resamples each of the kLanes columns of `in` [samples, kLanes] to `out` [spans, kLanes].
template <class Weight>
inline __attribute__((always_inline)) void weigh_lane_columns(const uint8_t* in, const WeightTable<Weight>& weights,
                                                              uint8_t* out) {
  for (size_t i = 0; i < weights.spans.size(); ++i, out += kLanes) {
    const auto [first, count] = weights.spans[i];
    weigh_lanes(in + first * kLanes, kLanes, count, weights.of(static_cast<int64_t>(i)), weights.precision, out);
  }
}

// Templates cannot be made for several processors; these can.
VLMTRAIN_VECTORISED void resample_columns(const uint8_t* in, int64_t width, const ResampleWeights& weights,
                                          uint8_t* out) {
  weigh_columns(in, width, weights, out);
}
VLMTRAIN_VECTORISED void resample_columns(const uint8_t* in, int64_t width, const PillowWeights& weights,
                                          uint8_t* out) {
  weigh_columns(in, width, weights, out);
}
VLMTRAIN_VECTORISED void resample_lanes(const uint8_t* in, const ResampleWeights& weights, uint8_t* out) {
  weigh_lane_columns(in, weights, out);
}
VLMTRAIN_VECTORISED void resample_lanes(const uint8_t* in, const PillowWeights& weights, uint8_t* out) {
  weigh_lane_columns(in, weights, out);
}

/// Resamples each row of `in` [rows, width] to `out` [rows, spans]: kLanes rows at a time, turned so that the samples
/// of one column lie together. A row's neighbours have weights of their own, a column's share them.
template <class Weights>
void resample_rows(const uint8_t* in, int64_t rows, int64_t width, const Weights& weights, uint8_t* out) {
  const auto out_width = static_cast<int64_t>(weights.spans.size());
  std::vector<uint8_t> turned(width * kLanes);
  std::vector<uint8_t> resampled(out_width * kLanes);
  for (int64_t y = 0; y < rows; y += kLanes) {
    const int64_t lanes = std::min(kLanes, rows - y);
    transpose_bytes(in + y * width, width, lanes, width, turned.data(), kLanes);
    resample_lanes(turned.data(), weights, resampled.data());
    transpose_bytes(resampled.data(), kLanes, out_width, lanes, out + y * out_width, out_width);
  }
}

/// How the weights of one axis are made.
template <class Weights>
using WeightsOf = Weights (*)(int64_t input_size, int64_t output_size, Filter filter);

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

void check(const at::Tensor& image, int64_t height, int64_t width) {
  VLMTRAIN_CHECK(image.scalar_type() == at::kByte && image.device().is_cpu() && image.dim() == 3 && image.numel() > 0,
                 "a picture to resize is uint8 [channels, height, width] on the CPU");
  VLMTRAIN_CHECK(height > 0 && width > 0, "no picture of {} x {} pixels", height, width);
}

template <class Weights>
at::Tensor resize_with(WeightsOf<Weights> weights, const at::Tensor& image, int64_t height, int64_t width,
                       Filter filter) {
  check(image, height, width);
  at::Tensor result = image.contiguous();
  if (result.size(2) != width) result = resize_width(result, width, weights(result.size(2), width, filter));
  if (result.size(1) != height) result = resize_height(result, height, weights(result.size(1), height, filter));
  return result;
}

uint8_t rounded(double value) {
  constexpr double kHalfAndAlmost = 0.5 + 1e-6;
  return static_cast<uint8_t>(std::clamp(value + kHalfAndAlmost, 0.0, 255.0));
}

/// One channel, `in` [in_height, in_width] to `out` [spans of rows, spans of columns].
void resample_exactly(const uint8_t* in, int64_t in_height, int64_t in_width, const ExactWeights& columns,
                      const ExactWeights& rows, uint8_t* out) {
  const size_t width = columns.spans.size();
  std::vector<double> narrowed(static_cast<size_t>(in_height) * width);
  for (int64_t y = 0; y < in_height; ++y) {
    for (size_t x = 0; x < width; ++x) {
      const auto [first, count] = columns.spans[x];
      const uint8_t* source = in + y * in_width + first;
      const double* weights = columns.of(static_cast<int64_t>(x));
      double sum = 0;
      for (int64_t k = 0; k < count; ++k) sum += weights[k] * source[k];
      narrowed[static_cast<size_t>(y) * width + x] = sum;
    }
  }
  std::vector<double> sums(width);
  for (size_t y = 0; y < rows.spans.size(); ++y) {
    const auto [first, count] = rows.spans[y];
    const double* weights = rows.of(static_cast<int64_t>(y));
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t k = 0; k < count; ++k) {
      const double* source = narrowed.data() + static_cast<size_t>(first + k) * width;
      for (size_t x = 0; x < width; ++x) sums[x] += weights[k] * source[x];
    }
    out = std::transform(sums.begin(), sums.end(), out, rounded);
  }
}

}  // namespace

at::Tensor resize(const at::Tensor& image, int64_t height, int64_t width, Filter filter) {
  return resize_with(&resample_weights, image, height, width, filter);
}

at::Tensor resize_as_pillow(const at::Tensor& image, int64_t height, int64_t width, Filter filter) {
  return resize_with(&pillow_weights, image, height, width, filter);
}

at::Tensor resize_rounding_once(const at::Tensor& image, int64_t height, int64_t width, Filter filter) {
  check(image, height, width);
  const at::Tensor source = image.contiguous();
  const ExactWeights columns = exact_weights(source.size(2), width, filter);
  const ExactWeights rows = exact_weights(source.size(1), height, filter);
  at::Tensor result = at::empty({source.size(0), height, width}, source.options());
  for (int64_t channel = 0; channel < source.size(0); ++channel) {
    resample_exactly(source.const_data_ptr<uint8_t>() + channel * source.stride(0), source.size(1), source.size(2),
                     columns, rows, result.mutable_data_ptr<uint8_t>() + channel * result.stride(0));
  }
  return result;
}

}  // namespace vlmtrain::image
