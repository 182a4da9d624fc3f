#include "vlmtrain/image/resize.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "image/pixel_layout.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/mask.h"

namespace vlmtrain::image {

namespace {

/// The source samples that one output sample depends on: `count` samples, starting at `first`.
struct SourceSpan {
  int64_t first;
  int64_t count;
};

/// The weights of one axis. Output i is Σ weight(i, k) · source[first + k] over k < count. With
/// integer weights, it is (Σ weight(i, k) · source[first + k] + 2^(precision-1)) >> precision,
/// clamped to a byte.
template <class Weight>
struct WeightTable {
  std::vector<SourceSpan> spans;  ///< [outputs]
  std::vector<Weight> values;     ///< [outputs, stride]; zero after a span's count
  int64_t stride = 0;             ///< weights stored for each output, even
  int precision = 0;              ///< fractional bits of integer weights

  /// Returns the weights of one output.
  const Weight* get_output_weights(int64_t output) const { return values.data() + output * stride; }
};
using DoubleWeights = WeightTable<double>;
using AtenWeights = WeightTable<int16_t>;    // ATen's type of weights
using PillowWeights = WeightTable<int32_t>;  // Pillow's type of weights

// The filters at distance x >= 0 from their center.

double triangle_filter(double x) {
  return x < 1.0 ? 1.0 - x : 0.0;
}

double keys_cubic_filter(double x) {
  constexpr double kKeysCoefficient = -0.5;
  if (x < 1.0) return ((kKeysCoefficient + 2.0) * x - (kKeysCoefficient + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * kKeysCoefficient;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  const double angle = x * std::numbers::pi;
  return std::sin(angle) / angle;
}

double lanczos3_filter(double x) {
  return x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0;
}

/// Truncates towards zero. ATen rounds by adding a half and casting, which differs from floor for
/// negative values.
int64_t truncate_to_int64(double value) {
  return static_cast<int64_t>(value);
}

/// A filter and its support: the distance in source samples at which it becomes 0.
struct FilterKernel {
  double (*value)(double distance);
  double support;
};

FilterKernel get_filter_kernel(ResampleFilter filter) {
  switch (filter) {
    case ResampleFilter::kBilinear:
      return {triangle_filter, 1.0};
    case ResampleFilter::kBicubic:
      return {keys_cubic_filter, 2.0};
    case ResampleFilter::kLanczos:
      break;
  }
  return {lanczos3_filter, 3.0};
}

/// Returns the maximum number of fractional bits with which the largest weight fits in int16, as
/// ATen chooses it.
int choose_precision(double max_weight) {
  constexpr int kMaxPrecisionBits = 22;  // as in ATen
  int precision = 0;
  while (precision < kMaxPrecisionBits) {
    const int64_t scaled_weight = truncate_to_int64(max_weight * (1 << (precision + 1)) + 0.5);
    if (scaled_weight > std::numeric_limits<int16_t>::max()) break;
    ++precision;
  }
  return precision;
}

/// Converts weights to integers with `precision` fractional bits. Halves are rounded away from
/// zero.
template <class Weight>
WeightTable<Weight> to_fixed_point(const DoubleWeights& double_weights, int precision) {
  WeightTable<Weight> result{double_weights.spans, {}, double_weights.stride, precision};
  result.values.resize(double_weights.values.size());
  const double unit = 1 << precision;
  std::transform(double_weights.values.begin(), double_weights.values.end(), result.values.begin(),
                 [unit](double weight) {
                   return static_cast<Weight>(truncate_to_int64(weight * unit + std::copysign(0.5, weight)));
                 });
  return result;
}

/// Returns weights whose sum is 1 for each output. Source of the formulas: precompute_coeffs of
/// Pillow's Resample.c.
DoubleWeights make_double_weights(int64_t input_size, int64_t output_size, ResampleFilter filter) {
  const FilterKernel kernel = get_filter_kernel(filter);
  const double scale = static_cast<double>(input_size) / static_cast<double>(output_size);
  const double filter_scale = std::max(scale, 1.0);
  const double inverse_filter_scale = 1.0 / filter_scale;
  const double support = kernel.support * filter_scale;
  const auto max_samples_per_output = static_cast<int64_t>(std::ceil(support)) * 2 + 1;

  DoubleWeights result;
  result.stride = (max_samples_per_output + 1) / 2 * 2;  // even
  result.spans.reserve(output_size);
  result.values.resize(output_size * result.stride);
  for (int64_t i = 0; i < output_size; ++i) {
    const double center = scale * (static_cast<double>(i) + 0.5);
    const auto first = std::max<int64_t>(truncate_to_int64(center - support + 0.5), 0);
    const auto end = std::min(truncate_to_int64(center + support + 0.5), input_size);
    const int64_t count = std::clamp<int64_t>(end - first, 0, max_samples_per_output);
    double* weights = result.values.data() + i * result.stride;
    double weight_sum = 0.0;
    for (int64_t k = 0; k < count; ++k) {
      weights[k] = kernel.value(std::abs((static_cast<double>(k + first) - center + 0.5) * inverse_filter_scale));
      weight_sum += weights[k];
    }
    for (int64_t k = 0; k < count && weight_sum != 0.0; ++k) weights[k] /= weight_sum;
    result.spans.push_back({first, count});
  }
  return result;
}

/// Returns the weights of resize_image(). Source of the formulas:
/// ATen/native/cpu/UpSampleKernel.cpp, which follows Pillow's Resample.c with 16-bit weights.
AtenWeights make_aten_weights(int64_t input_size, int64_t output_size, ResampleFilter filter) {
  const DoubleWeights double_weights = make_double_weights(input_size, output_size, filter);
  const double max_weight = std::max(0.0, *std::ranges::max_element(double_weights.values));
  return to_fixed_point<int16_t>(double_weights, choose_precision(max_weight));
}

/// Returns the weights of resize_like_pillow(). Source: normalize_coeffs_8bpc of Pillow's
/// Resample.c.
PillowWeights make_pillow_weights(int64_t input_size, int64_t output_size, ResampleFilter filter) {
  constexpr int kPrecisionBits = 22;  // 32 bits minus 8 bits of the pixel and 2 bits of headroom
  return to_fixed_point<int32_t>(make_double_weights(input_size, output_size, filter), kPrecisionBits);
}

/// The number of neighboring samples that are resampled together with the same weights: the bytes
/// of an AVX2 register.
constexpr int64_t kNumLanes = 32;

/// Converts a sum with `precision` fractional bits.
inline uint8_t to_byte(int32_t sum, int precision) {
  return static_cast<uint8_t>(std::clamp(sum >> precision, 0, 255));
}

/// Computes one output sample for each of kNumLanes neighbors, whose k-th source samples are
/// contiguous at source + k * stride.
template <class Weight>
inline __attribute__((always_inline)) void accumulate_lanes(const uint8_t* source, int64_t stride, int64_t count,
                                                            const Weight* weights, int precision, uint8_t* output) {
  std::array<int32_t, kNumLanes> sums;
  sums.fill(1 << (precision - 1));  // rounds to nearest
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t lane = 0; lane < kNumLanes; ++lane) sums[lane] += weights[k] * source[k * stride + lane];
  }
  for (int64_t lane = 0; lane < kNumLanes; ++lane) output[lane] = to_byte(sums[lane], precision);
}

/// Computes one output sample, whose k-th source sample is at source + k * stride.
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
  const int64_t vectorized_width = width / kNumLanes * kNumLanes;
  for (size_t y = 0; y < weights.spans.size(); ++y, output += width) {
    const auto [first, count] = weights.spans[y];
    const uint8_t* source = input + first * width;
    const Weight* row_weights = weights.get_output_weights(static_cast<int64_t>(y));
    for (int64_t x = 0; x < vectorized_width; x += kNumLanes) {
      accumulate_lanes(source + x, width, count, row_weights, weights.precision, output + x);
    }
    for (int64_t x = vectorized_width; x < width; ++x)
      output[x] = accumulate_sample(source + x, width, count, row_weights, weights.precision);
  }
}

/// Resamples each of the kNumLanes columns of `input` [samples, kNumLanes] to `output` [spans,
/// kNumLanes].
template <class Weight>
inline __attribute__((always_inline)) void resample_lanes_impl(const uint8_t* input, const WeightTable<Weight>& weights,
                                                               uint8_t* output) {
  for (size_t i = 0; i < weights.spans.size(); ++i, output += kNumLanes) {
    const auto [first, count] = weights.spans[i];
    accumulate_lanes(input + first * kNumLanes, kNumLanes, count, weights.get_output_weights(static_cast<int64_t>(i)),
                     weights.precision, output);
  }
}

// target_clones of VLMTRAIN_VECTORIZED does not apply to templates, hence these overloads.
VLMTRAIN_VECTORIZED void resample_columns(const uint8_t* input, int64_t width, const AtenWeights& weights,
                                          uint8_t* output) {
  resample_columns_impl(input, width, weights, output);
}
VLMTRAIN_VECTORIZED void resample_columns(const uint8_t* input, int64_t width, const PillowWeights& weights,
                                          uint8_t* output) {
  resample_columns_impl(input, width, weights, output);
}
VLMTRAIN_VECTORIZED void resample_lanes(const uint8_t* input, const AtenWeights& weights, uint8_t* output) {
  resample_lanes_impl(input, weights, output);
}
VLMTRAIN_VECTORIZED void resample_lanes(const uint8_t* input, const PillowWeights& weights, uint8_t* output) {
  resample_lanes_impl(input, weights, output);
}

/// Resamples each row of `input` [rows, width] to `output` [rows, spans]. Transposes kNumLanes rows
/// at a time, since the weights differ along a row and are equal along a column.
template <class Weights>
void resample_rows(const uint8_t* input, int64_t rows, int64_t width, const Weights& weights, uint8_t* output) {
  const auto output_width = static_cast<int64_t>(weights.spans.size());
  std::vector<uint8_t> transposed_lanes(width * kNumLanes);
  std::vector<uint8_t> resampled_lanes(output_width * kNumLanes);
  for (int64_t y = 0; y < rows; y += kNumLanes) {
    const int64_t lanes = std::min(kNumLanes, rows - y);
    transpose_bytes(input + y * width, width, lanes, width, transposed_lanes.data(), kNumLanes);
    resample_lanes(transposed_lanes.data(), weights, resampled_lanes.data());
    transpose_bytes(resampled_lanes.data(), kNumLanes, output_width, lanes, output + y * output_width, output_width);
  }
}

/// A function that computes the weights of an axis.
template <class Weights>
using MakeWeightsFunction = Weights (*)(int64_t input_size, int64_t output_size, ResampleFilter filter);

/// Resizes `image`, contiguous [channels, height, width], to a width.
template <class Weights>
at::Tensor resize_width(const at::Tensor& image, int64_t width, const Weights& weights) {
  at::Tensor result = at::empty({image.size(0), image.size(1), width}, image.options());
  resample_rows(image.const_data_ptr<uint8_t>(), image.size(0) * image.size(1), image.size(2), weights,
                result.mutable_data_ptr<uint8_t>());
  return result;
}

/// Resizes `image`, contiguous [channels, height, width], to a height.
template <class Weights>
at::Tensor resize_height(const at::Tensor& image, int64_t height, const Weights& weights) {
  at::Tensor result = at::empty({image.size(0), height, image.size(2)}, image.options());
  for (int64_t channel = 0; channel < image.size(0); ++channel) {
    resample_columns(image.const_data_ptr<uint8_t>() + channel * image.stride(0), image.size(2), weights,
                     result.mutable_data_ptr<uint8_t>() + channel * result.stride(0));
  }
  return result;
}

void check_resize_arguments(const at::Tensor& image, int64_t height, int64_t width) {
  VLMTRAIN_CHECK(image.scalar_type() == at::kByte && image.device().is_cpu() && image.dim() == 3 && image.numel() > 0,
                 "the image to resize must be uint8 [channels, height, width] on the CPU");
  VLMTRAIN_CHECK(height > 0 && width > 0, "invalid image size: {} x {} pixels", height, width);
}

/// Resizes the width, then the height, and rounds to bytes after each.
template <class Weights>
at::Tensor resize_uint8_image(MakeWeightsFunction<Weights> make_weights, const at::Tensor& image, int64_t height,
                              int64_t width, ResampleFilter filter) {
  check_resize_arguments(image, height, width);
  at::Tensor result = image.contiguous();
  if (result.size(2) != width) result = resize_width(result, width, make_weights(result.size(2), width, filter));
  if (result.size(1) != height) result = resize_height(result, height, make_weights(result.size(1), height, filter));
  return result;
}

uint8_t round_to_byte(double value) {
  // Values up to 1e-6 below a half round up; see resize_in_floating_point().
  constexpr double kRoundingOffset = 0.5 + 1e-6;
  return static_cast<uint8_t>(std::clamp(value + kRoundingOffset, 0.0, 255.0));
}

/// Resamples one channel, `input` [input_height, input_width], to `output` [row_weights.spans,
/// column_weights.spans].
void resample_channel(const uint8_t* input, int64_t input_height, int64_t input_width,
                      const DoubleWeights& column_weights, const DoubleWeights& row_weights, uint8_t* output) {
  const size_t width = column_weights.spans.size();
  std::vector<double> resampled_rows(static_cast<size_t>(input_height) * width);
  for (int64_t y = 0; y < input_height; ++y) {
    for (size_t x = 0; x < width; ++x) {
      const auto [first, count] = column_weights.spans[x];
      const uint8_t* source = input + y * input_width + first;
      const double* weights = column_weights.get_output_weights(static_cast<int64_t>(x));
      double sum = 0;
      for (int64_t k = 0; k < count; ++k) sum += weights[k] * source[k];
      resampled_rows[static_cast<size_t>(y) * width + x] = sum;
    }
  }
  std::vector<double> sums(width);
  for (size_t y = 0; y < row_weights.spans.size(); ++y) {
    const auto [first, count] = row_weights.spans[y];
    const double* weights = row_weights.get_output_weights(static_cast<int64_t>(y));
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t k = 0; k < count; ++k) {
      const double* source = resampled_rows.data() + static_cast<size_t>(first + k) * width;
      for (size_t x = 0; x < width; ++x) sums[x] += weights[k] * source[x];
    }
    output = std::transform(sums.begin(), sums.end(), output, round_to_byte);
  }
}

/// Returns floor((output + 0.5) · input_size / output_size).
int64_t compute_source_index(int64_t output, int64_t output_size, int64_t input_size) {
  return (2 * output + 1) * input_size / (2 * output_size);
}

}  // namespace

at::Tensor resize_image(const at::Tensor& image, int64_t height, int64_t width, ResampleFilter filter) {
  return resize_uint8_image(&make_aten_weights, image, height, width, filter);
}

at::Tensor resize_like_pillow(const at::Tensor& image, int64_t height, int64_t width, ResampleFilter filter) {
  return resize_uint8_image(&make_pillow_weights, image, height, width, filter);
}

at::Tensor resize_in_floating_point(const at::Tensor& image, int64_t height, int64_t width, ResampleFilter filter) {
  check_resize_arguments(image, height, width);
  const at::Tensor source = image.contiguous();
  const DoubleWeights column_weights = make_double_weights(source.size(2), width, filter);
  const DoubleWeights row_weights = make_double_weights(source.size(1), height, filter);
  at::Tensor result = at::empty({source.size(0), height, width}, source.options());
  for (int64_t channel = 0; channel < source.size(0); ++channel) {
    resample_channel(source.const_data_ptr<uint8_t>() + channel * source.stride(0), source.size(1), source.size(2),
                     column_weights, row_weights, result.mutable_data_ptr<uint8_t>() + channel * result.stride(0));
  }
  return result;
}

at::Tensor resize_mask(const at::Tensor& mask, int64_t height, int64_t width) {
  check_is_mask(mask);
  VLMTRAIN_CHECK(height > 0 && width > 0, "invalid mask size: {} x {} pixels", height, width);
  at::Tensor source = mask.contiguous();
  if (source.size(0) == height && source.size(1) == width) return source;
  std::vector<int64_t> source_columns(static_cast<size_t>(width));
  for (int64_t x = 0; x < width; ++x) source_columns[x] = compute_source_index(x, width, source.size(1));
  at::Tensor result = at::empty({height, width}, at::kByte);
  auto* output = result.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* row =
        source.const_data_ptr<uint8_t>() + compute_source_index(y, height, source.size(0)) * source.size(1);
    for (const int64_t x : source_columns) *output++ = row[x];
  }
  return result;
}

}  // namespace vlmtrain::image
