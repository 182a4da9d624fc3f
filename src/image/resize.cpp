#include "vlmtrain/image/resize.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <vector>

#include "image/resample_weights.h"
#include "image/transpose.h"
#include "vlmtrain/base/error.h"

// The loops below are plain C++ that the compiler turns into vector code; on x86-64 it does so for more than one
// generation of processors, and the loader picks the one that fits the machine.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define VLMTRAIN_VECTORISED __attribute__((target_clones("avx2", "default")))
#else
#define VLMTRAIN_VECTORISED
#endif

namespace vlmtrain::image {
namespace {

/// Samples that are resampled side by side with the same weights.
constexpr int64_t kLanes = 32;

inline uint8_t to_byte(int32_t sum, int precision) {
  return static_cast<uint8_t>(std::clamp(sum >> precision, 0, 255));
}

/// One output sample of each of kLanes neighbours; the k-th source samples lie together at source + k * stride.
inline __attribute__((always_inline)) void weigh_lanes(const uint8_t* source, int64_t stride, int64_t count,
                                                       const int16_t* weights, int precision, uint8_t* out) {
  std::array<int32_t, kLanes> sums;
  sums.fill(1 << (precision - 1));
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += weights[k] * source[k * stride + lane];
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) out[lane] = to_byte(sums[lane], precision);
}

inline uint8_t weigh_one(const uint8_t* source, int64_t stride, int64_t count, const int16_t* weights, int precision) {
  int32_t sum = 1 << (precision - 1);
  for (int64_t k = 0; k < count; ++k) sum += weights[k] * source[k * stride];
  return to_byte(sum, precision);
}

/// Resamples each column of `in` [rows, width] to `out` [spans, width].
VLMTRAIN_VECTORISED void resample_columns(const uint8_t* in, int64_t width, const ResampleWeights& weights,
                                          uint8_t* out) {
  const int64_t whole = width / kLanes * kLanes;
  for (size_t y = 0; y < weights.spans.size(); ++y, out += width) {
    const auto [first, count] = weights.spans[y];
    const uint8_t* source = in + first * width;
    const int16_t* values = weights.of(static_cast<int64_t>(y));
    for (int64_t x = 0; x < whole; x += kLanes) {
      weigh_lanes(source + x, width, count, values, weights.precision, out + x);
    }
    for (int64_t x = whole; x < width; ++x) out[x] = weigh_one(source + x, width, count, values, weights.precision);
  }
}

/// Resamples each of the kLanes columns of `in` [samples, kLanes] to `out` [spans, kLanes].
VLMTRAIN_VECTORISED void resample_lanes(const uint8_t* in, const ResampleWeights& weights, uint8_t* out) {
  for (size_t i = 0; i < weights.spans.size(); ++i, out += kLanes) {
    const auto [first, count] = weights.spans[i];
    weigh_lanes(in + first * kLanes, kLanes, count, weights.of(static_cast<int64_t>(i)), weights.precision, out);
  }
}

/// Resamples each row of `in` [rows, width] to `out` [rows, spans]: kLanes rows at a time, turned so that the samples
/// of one column lie together. A row's neighbours have weights of their own, a column's share them.
void resample_rows(const uint8_t* in, int64_t rows, int64_t width, const ResampleWeights& weights, uint8_t* out) {
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

at::Tensor resize_width(const at::Tensor& image, int64_t width, Filter filter) {
  at::Tensor result = at::empty({image.size(0), image.size(1), width}, image.options());
  resample_rows(image.const_data_ptr<uint8_t>(), image.size(0) * image.size(1), image.size(2),
                resample_weights(image.size(2), width, filter), result.mutable_data_ptr<uint8_t>());
  return result;
}

at::Tensor resize_height(const at::Tensor& image, int64_t height, Filter filter) {
  at::Tensor result = at::empty({image.size(0), height, image.size(2)}, image.options());
  const ResampleWeights weights = resample_weights(image.size(1), height, filter);
  for (int64_t channel = 0; channel < image.size(0); ++channel) {
    resample_columns(image.const_data_ptr<uint8_t>() + channel * image.stride(0), image.size(2), weights,
                     result.mutable_data_ptr<uint8_t>() + channel * result.stride(0));
  }
  return result;
}

}  // namespace

at::Tensor resize(const at::Tensor& image, int64_t height, int64_t width, Filter filter) {
  VLMTRAIN_CHECK(image.scalar_type() == at::kByte && image.device().is_cpu() && image.dim() == 3 && image.numel() > 0,
                 "a picture to resize is uint8 [channels, height, width] on the CPU");
  VLMTRAIN_CHECK(height > 0 && width > 0, "no picture of {} x {} pixels", height, width);
  at::Tensor result = image.contiguous();
  if (result.size(2) != width) result = resize_width(result, width, filter);
  if (result.size(1) != height) result = resize_height(result, height, filter);
  return result;
}

}  // namespace vlmtrain::image
