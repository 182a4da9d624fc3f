#include "vlmtrain/image/augment.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/flip.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "image/mask_check.h"
#include "image/rotation.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"

namespace vlmtrain::image {
namespace {

/// Uniform in [0, 1), of 53 bits.
double uniform(uint64_t seed, std::string_view stream) {
  return static_cast<double>(RandomStream(stream_seed(seed, stream)).next() >> 11) * 0x1p-53;
}

/// Uniform in ± `most`, a multiple of 2^-24: so that what is computed of it is exact, with and without fused
/// operations.
double uniform_around_zero(double most, uint64_t seed, std::string_view stream) {
  return std::round(most * (2 * uniform(seed, stream) - 1) * 0x1p24) * 0x1p-24;
}

/// One channel [height, width] in memory; 0 beyond its border.
struct Plane {
  const uint8_t* pixels;
  int64_t height, width;

  int64_t at(int64_t y, int64_t x) const {
    return y >= 0 && y < height && x >= 0 && x < width ? pixels[y * width + x] : 0;
  }
};

uint8_t nearest(const Plane& plane, Rotation::Place place) {
  constexpr int64_t kHalf = int64_t{1} << (Rotation::kFraction - 1);
  return static_cast<uint8_t>(
      plane.at((place.y + kHalf) >> Rotation::kFraction, (place.x + kHalf) >> Rotation::kFraction));
}

/// With weights in units of 2^-kBits.
uint8_t bilinear(const Plane& plane, Rotation::Place place) {
  constexpr int kBits = 15;
  constexpr int64_t kOne = int64_t{1} << kBits;
  const int64_t y = place.y >> Rotation::kFraction, x = place.x >> Rotation::kFraction;
  const int64_t down = (place.y >> (Rotation::kFraction - kBits)) & (kOne - 1);
  const int64_t right = (place.x >> (Rotation::kFraction - kBits)) & (kOne - 1);
  const int64_t above = plane.at(y, x) * (kOne - right) + plane.at(y, x + 1) * right;
  const int64_t below = plane.at(y + 1, x) * (kOne - right) + plane.at(y + 1, x + 1) * right;
  constexpr int64_t kRounding = int64_t{1} << (2 * kBits - 1);
  return static_cast<uint8_t>((above * (kOne - down) + below * down + kRounding) >> (2 * kBits));
}

/// Of channels [channels, height, width], each pixel what `sample` gives of the place where it comes from.
template <class Sample>
at::Tensor rotated(const at::Tensor& channels, double degrees, const Sample& sample) {
  const at::Tensor source = channels.contiguous();
  const int64_t height = source.size(1), width = source.size(2);
  const Rotation rotation(degrees, height, width);
  at::Tensor result = at::empty(source.sizes(), at::kByte);
  auto* out = result.mutable_data_ptr<uint8_t>();
  for (int64_t channel = 0; channel < source.size(0); ++channel) {
    const Plane plane{source.const_data_ptr<uint8_t>() + channel * height * width, height, width};
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) *out++ = sample(plane, rotation.source_of(y, x));
    }
  }
  return result;
}

at::Tensor brightened(const at::Tensor& picture, double factor) {
  std::array<uint8_t, 256> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(std::clamp(std::round(static_cast<double>(i) * factor), 0.0, 255.0));
  }
  const at::Tensor source = picture.contiguous();
  at::Tensor result = at::empty(source.sizes(), at::kByte);
  const auto* const in = source.const_data_ptr<uint8_t>();
  std::transform(in, in + source.numel(), result.mutable_data_ptr<uint8_t>(),
                 [&](uint8_t byte) { return bytes[byte]; });
  return result;
}

}  // namespace

Augmentation draw_augmentation(const AugmentSettings& settings, uint64_t seed) {
  VLMTRAIN_CHECK(settings.flip >= 0 && settings.flip <= 1 && settings.rotation_degrees >= 0 &&
                     settings.brightness >= 0 && settings.brightness <= 1,
                 "a flip of {}, a rotation of {} degrees, a brightness of {}", settings.flip, settings.rotation_degrees,
                 settings.brightness);
  return {.flip = uniform(seed, "flip") < settings.flip,
          .degrees = uniform_around_zero(settings.rotation_degrees, seed, "rotation"),
          .brightness = 1 + uniform_around_zero(settings.brightness, seed, "brightness")};
}

at::Tensor augment_picture(const at::Tensor& picture, const Augmentation& augmentation) {
  VLMTRAIN_CHECK(picture.dim() == 3 && picture.size(0) == 3 && picture.scalar_type() == at::kByte && picture.is_cpu(),
                 "a picture to augment is uint8 [3, height, width] on the CPU");
  at::Tensor result = picture;
  if (augmentation.flip) result = result.flip({2});
  if (augmentation.degrees != 0) result = rotated(result, augmentation.degrees, bilinear);
  return augmentation.brightness == 1 ? result : brightened(result, augmentation.brightness);
}

at::Tensor augment_mask(const at::Tensor& mask, const Augmentation& augmentation) {
  check_is_mask(mask);
  at::Tensor result = mask;
  if (augmentation.flip) result = result.flip({1});
  if (augmentation.degrees == 0) return result;
  return rotated(result.unsqueeze(0), augmentation.degrees, nearest).squeeze(0);
}

}  // namespace vlmtrain::image
