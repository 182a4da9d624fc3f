#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vlmtrain::app {

/// A component of --image-mix: samples with the same number of images.
struct ImageMixComponent {
  int64_t num_images = 0;  ///< images per sample
  double share = 0;        ///< greater than 0; the shares of a mix add up to 1
};

/// Parses the value of --image-mix, such as 1:0.5,2:0.25,3:0.25, into components by ascending
/// number of images. Normalizes shares that do not add up to 1. Throws UserError (kUsage) for
/// invalid text and for a number of images that occurs twice.
std::vector<ImageMixComponent> parse_image_mix(const std::string& text);

/// Parses the value of --volume-size: XxYxZ in voxels, or one number for all three, each from 1 to
/// 99999. Returns {x, y, z}, or nothing for empty text. Throws UserError (kUsage) for invalid text.
std::optional<std::array<int64_t, 3>> parse_volume_size(const std::string& text);

/// Returns the names of data types that --dtype accepts (parse_weight_dtype() in app/process/device.h).
inline const std::vector<std::string>& list_weight_dtype_names() {
  static const std::vector<std::string> names{"float32", "bfloat16", "float16", "fp32", "bf16", "fp16"};
  return names;
}

}  // namespace vlmtrain::app
