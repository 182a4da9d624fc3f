#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "models/processing/preprocessor_config.h"
#include "models/qwen2_vl/family.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/image/size.h"

namespace vlmtrain::models::qwen2_vl {

/// Range of the total number of pixels of an image after resizing.
struct PixelBudget {
  int64_t min_pixels;
  int64_t max_pixels;
};

/// Throws UserError (kBadData) for an aspect ratio above 200, which transformers rejects.
void check_aspect_ratio(image::ImageSize size);

/// Returns the size that an image is resized to, with the arithmetic of transformers' smart_resize.
/// Both sides are multiples of `factor` pixels, and the size is within `budget`, if possible, with
/// nearly the aspect ratio of `size`. Throws as check_aspect_ratio().
image::ImageSize smart_resize(image::ImageSize size, int64_t factor, PixelBudget budget);

/// Settings of the conversion of images and video frames to the tower's input.
struct PixelSettings {
  PixelBudget budget{};  ///< per image or frame, unless a struct with this one defines it otherwise
  image::ResampleFilter filter = image::ResampleFilter::kBicubic;
  image::Normalization normalization{};
};

/// Reads the settings shared by Qwen2VLImageProcessor and Qwen2VLVideoProcessor. `budget`, `mean`
/// and `deviation` are transformers' defaults for missing keys. Throws UserError (kBadData) with
/// the key for unsupported settings, and for a patch size other than the tower's.
PixelSettings read_pixel_settings(const PreprocessorConfig& file, PixelBudget budget, const VisionConfig& vision,
                                  const PreprocessorConfig::ChannelValues& mean = kClipMean,
                                  const PreprocessorConfig::ChannelValues& deviation = kClipStd);

/// Reads the image settings of preprocessor_config.json in `folder`, or of processor_config.json.
/// `max_pixels` (data.image_max_pixels) limits the budget as limit_pixel_budget(). Throws as
/// read_pixel_settings(), also for missing files and other processor types.
PixelSettings read_image_settings(const std::filesystem::path& folder, const VisionConfig& vision,
                                  std::optional<int64_t> max_pixels);

/// Largest supported pixel budget. Its product with a number of frames is within 64 bits.
inline constexpr int64_t kMaxBudgetPixels = int64_t{1} << 40;

/// Returns `budget` with minimum and maximum lowered to at most `max_pixels`; nothing: no limit.
PixelBudget limit_pixel_budget(PixelBudget budget, std::optional<int64_t> max_pixels);

/// Writes a budget into the settings of a processor, under each of the key names that they have:
/// min_pixels and max_pixels, size.shortest_edge and size.longest_edge.
void write_pixel_budget(nlohmann::ordered_json& settings, PixelBudget budget);

/// Returns the keys that read_pixel_settings() supports, and keys that do not affect pixels.
const std::set<std::string_view>& get_pixel_config_keys();

/// Returns the size that an image of this size is resized to; its sides are whole tokens. Throws as
/// check_aspect_ratio().
image::ImageSize compute_resized_size(image::ImageSize size, const PixelSettings& settings, const VisionConfig& vision);

}  // namespace vlmtrain::models::qwen2_vl
