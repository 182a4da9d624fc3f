#include "image/resample_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace vlmtrain::image {
namespace {

double triangle(double x) {
  return x < 1.0 ? 1.0 - x : 0.0;
}

double keys_cubic(double x) {
  constexpr double kCoefficient = -0.5;
  if (x < 1.0) return ((kCoefficient + 2.0) * x - (kCoefficient + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * kCoefficient;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  const double angle = x * std::numbers::pi;
  return std::sin(angle) / angle;
}

double lanczos3(double x) {
  return x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0;
}

/// ATen's roundings are casts after adding a half, which drop the fraction towards zero; they are kept to the letter.
int64_t truncate(double value) {
  return static_cast<int64_t>(value);
}

struct Kernel {
  double (*value)(double distance);
  double support;
};

Kernel get_kernel(Filter filter) {
  switch (filter) {
    case Filter::kBilinear:
      return {triangle, 1.0};
    case Filter::kBicubic:
      return {keys_cubic, 2.0};
    case Filter::kLanczos:
      break;
  }
  return {lanczos3, 3.0};
}

/// The most fractional bits with which the largest weight still fits 16 bits.
int choose_precision(double max_weight) {
  constexpr int kMaxPrecision = 22;
  int precision = 0;
  while (precision < kMaxPrecision) {
    const int64_t scaled = truncate(max_weight * (1 << (precision + 1)) + 0.5);
    if (scaled > std::numeric_limits<int16_t>::max()) break;
    ++precision;
  }
  return precision;
}

/// With so many fractional bits, rounded away from zero.
template <class Weight>
WeightTable<Weight> to_fixed_point(const ExactWeights& exact, int precision) {
  WeightTable<Weight> result{exact.spans, {}, exact.stride, precision};
  result.values.resize(exact.values.size());
  const double unit = 1 << precision;
  std::transform(exact.values.begin(), exact.values.end(), result.values.begin(), [unit](double weight) {
    return static_cast<Weight>(truncate(weight * unit + std::copysign(0.5, weight)));
  });
  return result;
}

}  // namespace

ExactWeights make_exact_weights(int64_t input_size, int64_t output_size, Filter filter) {
  const Kernel kernel = get_kernel(filter);
  const double scale = static_cast<double>(input_size) / static_cast<double>(output_size);
  const double stretch = std::max(scale, 1.0);
  const double inverse_stretch = 1.0 / stretch;
  const double support = kernel.support * stretch;
  const auto max_count = static_cast<int64_t>(std::ceil(support)) * 2 + 1;

  ExactWeights result;
  result.stride = (max_count + 1) / 2 * 2;
  result.spans.reserve(output_size);
  result.values.resize(output_size * result.stride);
  for (int64_t i = 0; i < output_size; ++i) {
    const double center = scale * (static_cast<double>(i) + 0.5);
    const auto first = std::max<int64_t>(truncate(center - support + 0.5), 0);
    const auto end = std::min(truncate(center + support + 0.5), input_size);
    const int64_t count = std::clamp<int64_t>(end - first, 0, max_count);
    double* weights = result.values.data() + i * result.stride;
    double total = 0.0;
    for (int64_t k = 0; k < count; ++k) {
      weights[k] = kernel.value(std::abs((static_cast<double>(k + first) - center + 0.5) * inverse_stretch));
      total += weights[k];
    }
    for (int64_t k = 0; k < count && total != 0.0; ++k) weights[k] /= total;
    result.spans.push_back({first, count});
  }
  return result;
}

ResampleWeights make_resample_weights(int64_t input_size, int64_t output_size, Filter filter) {
  const ExactWeights exact = make_exact_weights(input_size, output_size, filter);
  const double max_weight = std::max(0.0, *std::ranges::max_element(exact.values));
  return to_fixed_point<int16_t>(exact, choose_precision(max_weight));
}

PillowWeights make_pillow_weights(int64_t input_size, int64_t output_size, Filter filter) {
  constexpr int kPrecision = 22;
  return to_fixed_point<int32_t>(make_exact_weights(input_size, output_size, filter), kPrecision);
}

}  // namespace vlmtrain::image
