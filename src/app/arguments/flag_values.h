#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vlmtrain::app {

/// Samples with so many images, and their share of all.
struct ImageMixComponent {
  int64_t images = 0;
  double share = 0;  ///< greater than 0; all of a mix sum up to 1
};

/// What `--mix 1:0.5,2:0.25,3:0.25` says, by images, ascending; shares that do not sum up to 1 are taken in proportion.
/// Throws UserError (kUsage) for anything else, and where a number of images stands twice.
std::vector<ImageMixComponent> parse_image_mix(const std::string& text);

/// What --volume-size says, in voxels: XxYxZ or one number for all three; nothing where it was not given. Throws
/// UserError (kUsage).
std::optional<std::array<int64_t, 3>> parse_volume_size(const std::string& text);

/// Names that --dtype accepts for floating-point types.
inline const std::vector<std::string>& weight_dtype_names() {
  static const std::vector<std::string> names{"float32", "bfloat16", "float16", "fp32", "bf16", "fp16"};
  return names;
}

/// Returns the type of one of weight_dtype_names(), or nothing for any other word.
inline std::optional<at::ScalarType> parse_weight_dtype(const std::string& name) {
  if (name == "float32" || name == "fp32") return at::kFloat;
  if (name == "bfloat16" || name == "bf16") return at::kBFloat16;
  if (name == "float16" || name == "fp16") return at::kHalf;
  return std::nullopt;
}

}  // namespace vlmtrain::app
