#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vlmtrain::app {

/// A part of --mix: samples with a number of images, and their share.
struct ImageMixComponent {
  int64_t images = 0;
  double share = 0;  ///< greater than 0; the shares of a mix add up to 1
};

/// Parses `--mix 1:0.5,2:0.25,3:0.25` into components by ascending images. Normalizes shares that
/// do not add up to 1. Throws UserError (kUsage) for other text and for a repeated number of
/// images.
std::vector<ImageMixComponent> parse_image_mix(const std::string& text);

/// Parses --volume-size, in voxels: XxYxZ, or one number for all three; nothing for empty text.
/// Throws UserError (kUsage).
std::optional<std::array<int64_t, 3>> parse_volume_size(const std::string& text);

/// Returns the names of data types that --dtype accepts.
inline const std::vector<std::string>& weight_dtype_names() {
  static const std::vector<std::string> names{"float32", "bfloat16", "float16", "fp32", "bf16", "fp16"};
  return names;
}

/// Returns the type of one of weight_dtype_names(); nothing for another word.
inline std::optional<at::ScalarType> parse_weight_dtype(const std::string& name) {
  if (name == "float32" || name == "fp32") return at::kFloat;
  if (name == "bfloat16" || name == "bf16") return at::kBFloat16;
  if (name == "float16" || name == "fp16") return at::kHalf;
  return std::nullopt;
}

}  // namespace vlmtrain::app
