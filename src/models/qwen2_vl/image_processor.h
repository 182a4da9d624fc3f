#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "models/processing/preprocessor_config.h"
#include "models/qwen2_vl/config.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/image/resize.h"

namespace vlmtrain::models::qwen2_vl {

/// Range of an image's pixels after resizing.
struct PixelBudget {
  int64_t min_pixels;
  int64_t max_pixels;
};

/// Throws UserError (kBadData) for an aspect ratio above 200, which the models were never trained
/// on.
void check_ratio(image::ImageSize size);

/// Returns the size that an image is resized to, with transformers' arithmetic: both sides
/// multiples of `factor`, the aspect ratio and the budget kept as closely as possible. Throws as
/// check_ratio().
image::ImageSize smart_resize(image::ImageSize size, int64_t factor, PixelBudget budget);

/// Settings that convert images and video frames to the tower's input.
struct PixelSettings {
  PixelBudget budget{};
  image::Filter filter = image::Filter::kBicubic;
  image::Normalization normalization{};
};

/// Reads the settings shared by Qwen2VLImageProcessor and Qwen2VLVideoProcessor; missing keys have
/// transformers' default, `budget`, `mean` and `deviation` included. Throws UserError (kBadData)
/// that names an unsupported setting, or a patch size other than the tower's.
PixelSettings read_pixel_settings(const PreprocessorConfig& file, PixelBudget budget, const VisionConfig& vision,
                                  const PreprocessorConfig::ChannelValues& mean = kClipMean,
                                  const PreprocessorConfig::ChannelValues& deviation = kClipStd);

/// Reads the image settings of preprocessor_config.json, or of processor_config.json. `max_pixels`
/// (data.image_max_pixels) limits an image; a limit below the minimum also lowers the minimum.
PixelSettings read_image_settings(const std::filesystem::path& folder, const VisionConfig& vision,
                                  std::optional<int64_t> max_pixels);

/// Largest pixel budget: keeps the product with a number of frames within 64 bits.
inline constexpr int64_t kMaxBudgetPixels = int64_t{1} << 40;

/// Returns `budget` with minimum and maximum limited to `max_pixels`.
PixelBudget limit_budget(PixelBudget budget, std::optional<int64_t> max_pixels);

/// Writes the budget into the settings of a processor, under each of its key names.
void write_pixel_budget(nlohmann::ordered_json& settings, PixelBudget budget);

/// Returns the keys that read_pixel_settings() reads, and those known not to change pixels.
const std::set<std::string_view>& get_pixel_keys();

/// Returns the size that an image of this size is resized to: whole tokens.
image::ImageSize compute_resized_size(image::ImageSize size, const PixelSettings& settings, const VisionConfig& vision);

/// Returns the patch grid of `frames` frames resized to `size`; the last frame is repeated to fill
/// temporal patches.
data::PatchGrid compute_grid(int64_t frames, image::ImageSize size, const VisionConfig& vision);

/// Returns the token grid of a patch grid.
data::PatchGrid compute_token_grid(const data::PatchGrid& patches, const VisionConfig& vision);

/// Returns the shape of an image or video of these patches, without the text around it.
data::SampleShape make_shape(const data::PatchGrid& grid, const VisionConfig& vision);

/// Writer of patches from frames that arrive one by one: uint8 [patches, 3, temporal_patch_size ·
/// patch_size, patch_size] of compute_grid(), the frames of a patch stacked vertically, patches
/// ordered by frame, then token. Bit for bit as transformers 5.23 with torchvision 0.29.
class PatchWriter {
 public:
  /// Starts patches of `frames` ≥ 1 frames that are resized to `size`.
  PatchWriter(int64_t frames, image::ImageSize size, image::Filter filter, const VisionConfig& vision);

  /// Adds the next frame, uint8 [3, height, width]. The tensor may be reused after the call.
  void add(const at::Tensor& frame);
  /// Returns all patches; repeats the last frame to fill the last temporal patch. Call once, after
  /// the last add().
  at::Tensor finish();

 private:
  void write(const at::Tensor& resized);

  image::Filter filter_;
  data::PatchGrid grid_;
  int64_t patch_, depth_, merge_;
  at::Tensor patches_;
  at::Tensor last_;  // resized last frame
  int64_t frames_ = 0;
};

/// Returns a frame, uint8 [3, height, width], from the patches of a PatchWriter.
at::Tensor extract_frame(const at::Tensor& patches, const data::PatchGrid& grid, int64_t frame,
                         const VisionConfig& vision);

}  // namespace vlmtrain::models::qwen2_vl
