#include "vlmtrain/image/pixel_transforms.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/flip.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/image/mask.h"

namespace vlmtrain::image {

namespace {

/// Returns a uniform number in [0, 1): 53 random bits, the precision of a double. `stream` names
/// the random stream.
double sample_uniform(uint64_t seed, std::string_view stream) {
  return static_cast<double>(RandomStream(derive_stream_seed(seed, stream)).next() >> 11) * 0x1p-53;
}

/// Returns a uniform number in [-max, max]. It is a multiple of 2^-24, so that its sums and
/// products are exact and do not depend on whether the compiler fuses a multiply with an add.
double sample_symmetric_uniform(double max, uint64_t seed, std::string_view stream) {
  return std::round(max * (2 * sample_uniform(seed, stream) - 1) * 0x1p24) * 0x1p-24;
}

/// A map from the pixels of a rotated image to positions in the source image, in integer
/// arithmetic. Sine and cosine are rounded, so that the result does not depend on the last bits of
/// a machine's math library.
class Rotation {
 public:
  /// Fractional bits of a position. An image side below 2^28 (kMaxImagePixels) leaves no overflow
  /// in 64 bits.
  static constexpr int kFractionBits = 31;

  /// A position in units of 2^-kFractionBits pixels. 0 is the center of the first pixel.
  struct FixedPointPosition {
    int64_t y, x;
  };

  /// Creates a counter-clockwise rotation about the center of an image of this size.
  Rotation(double degrees, int64_t height, int64_t width);

  /// Returns the position in the source image that the center of result pixel (y, x) comes from.
  FixedPointPosition compute_source_position(int64_t y, int64_t x) const {
    const int64_t dy = 2 * y - last_row_, dx = 2 * x - last_column_;  // from the image's center, in half pixels
    return {.y = dx * sine_ + dy * cosine_ + last_row_ * kHalfPixel,
            .x = dx * cosine_ - dy * sine_ + last_column_ * kHalfPixel};
  }

 private:
  static constexpr int64_t kHalfPixel = int64_t{1} << (kFractionBits - 1);

  int64_t last_row_, last_column_;
  int64_t sine_, cosine_;  // in units of 1 / kHalfPixel
};

Rotation::Rotation(double degrees, int64_t height, int64_t width) : last_row_(height - 1), last_column_(width - 1) {
  const double angle = degrees * std::numbers::pi / 180;
  sine_ = std::llround(std::sin(angle) * static_cast<double>(kHalfPixel));
  cosine_ = std::llround(std::cos(angle) * static_cast<double>(kHalfPixel));
}

/// One channel, `pixels` [height, width]. Pixels outside of it are 0.
struct PixelPlane {
  const uint8_t* pixels;
  int64_t height, width;

  int64_t get_pixel(int64_t y, int64_t x) const {
    return y >= 0 && y < height && x >= 0 && x < width ? pixels[y * width + x] : 0;
  }
};

/// Returns the pixel whose center is nearest to the position.
uint8_t sample_nearest(const PixelPlane& plane, Rotation::FixedPointPosition position) {
  constexpr int64_t kHalfPixel = int64_t{1} << (Rotation::kFractionBits - 1);
  return static_cast<uint8_t>(plane.get_pixel((position.y + kHalfPixel) >> Rotation::kFractionBits,
                                              (position.x + kHalfPixel) >> Rotation::kFractionBits));
}

/// Interpolates between four pixels, with weights in units of 2^-kWeightBits. Products of two
/// weights and a byte fit in 38 bits.
uint8_t sample_bilinear(const PixelPlane& plane, Rotation::FixedPointPosition position) {
  constexpr int kWeightBits = 15;
  constexpr int64_t kUnitWeight = int64_t{1} << kWeightBits;
  const int64_t y = position.y >> Rotation::kFractionBits, x = position.x >> Rotation::kFractionBits;
  const int64_t fraction_y = (position.y >> (Rotation::kFractionBits - kWeightBits)) & (kUnitWeight - 1);
  const int64_t fraction_x = (position.x >> (Rotation::kFractionBits - kWeightBits)) & (kUnitWeight - 1);
  const int64_t top_value = plane.get_pixel(y, x) * (kUnitWeight - fraction_x) + plane.get_pixel(y, x + 1) * fraction_x;
  const int64_t bottom_value =
      plane.get_pixel(y + 1, x) * (kUnitWeight - fraction_x) + plane.get_pixel(y + 1, x + 1) * fraction_x;
  constexpr int64_t kRoundingOffset = int64_t{1} << (2 * kWeightBits - 1);
  return static_cast<uint8_t>((top_value * (kUnitWeight - fraction_y) + bottom_value * fraction_y + kRoundingOffset) >>
                              (2 * kWeightBits));
}

/// Rotates `channels`, uint8 [channels, height, width]. `sample_plane` returns the value of a
/// PixelPlane at a FixedPointPosition.
template <class SamplePlane>
at::Tensor rotate_channels(const at::Tensor& channels, double degrees, const SamplePlane& sample_plane) {
  const at::Tensor source = channels.contiguous();
  const int64_t height = source.size(1), width = source.size(2);
  const Rotation rotation(degrees, height, width);
  at::Tensor result = at::empty(source.sizes(), at::kByte);
  auto* output = result.mutable_data_ptr<uint8_t>();
  for (int64_t channel = 0; channel < source.size(0); ++channel) {
    const PixelPlane plane{source.const_data_ptr<uint8_t>() + channel * height * width, height, width};
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) *output++ = sample_plane(plane, rotation.compute_source_position(y, x));
    }
  }
  return result;
}

/// Multiplies each byte by `factor`, through a table of the 256 results.
at::Tensor adjust_brightness(const at::Tensor& image, double factor) {
  std::array<uint8_t, 256> brightness_table;
  for (size_t i = 0; i < brightness_table.size(); ++i) {
    brightness_table[i] = static_cast<uint8_t>(std::clamp(std::round(static_cast<double>(i) * factor), 0.0, 255.0));
  }
  const at::Tensor source = image.contiguous();
  at::Tensor result = at::empty(source.sizes(), at::kByte);
  const auto* const input = source.const_data_ptr<uint8_t>();
  std::transform(input, input + source.numel(), result.mutable_data_ptr<uint8_t>(),
                 [&](uint8_t byte) { return brightness_table[byte]; });
  return result;
}

/// Returns the values as float32 [3, 1, 1], filled on the device. A tensor, since PyTorch's CUDA
/// division by a Scalar multiplies by its reciprocal, which rounds differently.
at::Tensor make_channel_tensor(const std::array<float, 3>& values, const at::Device& device) {
  at::Tensor result = at::empty({3, 1, 1}, at::TensorOptions(at::kFloat).device(device));
  for (int64_t channel = 0; channel < 3; ++channel) result.select(0, channel).fill_(values[channel]);
  return result;
}

}  // namespace

Augmentation sample_augmentation(const AugmentSettings& settings, uint64_t seed) {
  VLMTRAIN_CHECK(settings.horizontal_flip_probability >= 0 && settings.horizontal_flip_probability <= 1 &&
                     settings.max_rotation_degrees >= 0 && settings.max_brightness_change >= 0 &&
                     settings.max_brightness_change <= 1,
                 "flip {}, rotation {} degrees, brightness {}: out of range", settings.horizontal_flip_probability,
                 settings.max_rotation_degrees, settings.max_brightness_change);
  return {.is_horizontally_flipped = sample_uniform(seed, "flip") < settings.horizontal_flip_probability,
          .rotation_degrees = sample_symmetric_uniform(settings.max_rotation_degrees, seed, "rotation"),
          .brightness_factor = 1 + sample_symmetric_uniform(settings.max_brightness_change, seed, "brightness")};
}

at::Tensor augment_image(const at::Tensor& image, const Augmentation& augmentation) {
  VLMTRAIN_CHECK(image.dim() == 3 && image.size(0) == 3 && image.scalar_type() == at::kByte && image.is_cpu(),
                 "the image to augment must be uint8 [3, height, width] on the CPU");
  at::Tensor result = image;
  if (augmentation.is_horizontally_flipped) result = result.flip({2});
  if (augmentation.rotation_degrees != 0)
    result = rotate_channels(result, augmentation.rotation_degrees, sample_bilinear);
  return augmentation.brightness_factor == 1 ? result : adjust_brightness(result, augmentation.brightness_factor);
}

at::Tensor augment_mask(const at::Tensor& mask, const Augmentation& augmentation) {
  check_is_mask(mask);
  at::Tensor result = mask;
  if (augmentation.is_horizontally_flipped) result = result.flip({1});
  if (augmentation.rotation_degrees == 0) return result;
  return rotate_channels(result.unsqueeze(0), augmentation.rotation_degrees, sample_nearest).squeeze(0);
}

ByteNormalization to_byte_normalization(const Normalization& normalization) {
  const auto inverse_rescale_factor = static_cast<float>(1.0 / normalization.rescale_factor);
  ByteNormalization result{};
  for (size_t channel = 0; channel < 3; ++channel) {
    result.mean[channel] = static_cast<float>(normalization.mean[channel]) * inverse_rescale_factor;
    result.std[channel] = static_cast<float>(normalization.std[channel]) * inverse_rescale_factor;
  }
  return result;
}

at::Tensor normalize_pixels(const at::Tensor& pixels, const Normalization& normalization) {
  VLMTRAIN_CHECK(pixels.scalar_type() == at::kByte && pixels.dim() == 4 && pixels.size(1) == 3,
                 "pixels to normalize must be uint8 [n, 3, height, width]");
  const auto [mean, std] = to_byte_normalization(normalization);
  at::Tensor result = pixels.to(at::kFloat);
  result.sub_(make_channel_tensor(mean, pixels.device()));
  result.div_(make_channel_tensor(std, pixels.device()));
  return result;
}

}  // namespace vlmtrain::image
