#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "models/processing/preprocessor_config.h"
#include "models/qwen2_vl/family.h"
#include "vlmtrain/data/sample/sample_shape.h"
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

/// Returns the grid of patches of `frames` frames that were resized to `size`. The number of
/// temporal patches is rounded up.
data::PatchGrid compute_grid(int64_t frames, image::ImageSize size, const VisionConfig& vision);

/// Returns the grid of tokens of a grid of patches.
data::PatchGrid compute_token_grid(const data::PatchGrid& patches, const VisionConfig& vision);

/// Returns the token numbers and the input shape of an image or video with this grid of patches,
/// without the tokens of markers.
data::SampleShape make_sample_shape(const data::PatchGrid& grid, const VisionConfig& vision);

/// Writer of the patches of frames that are added one by one. The result is uint8 [patches, 3,
/// temporal_patch_size · patch_size, patch_size] for the grid of compute_grid(). The frames of a
/// patch are stacked vertically. Patches are ordered by temporal patch, then by token. Bitwise
/// equal to transformers 5.23 with torchvision 0.29. Not thread-safe.
class PatchWriter {
 public:
  /// Creates a writer of `frames` frames that are resized to `size`. REQUIRES: frames ≥ 1.
  PatchWriter(int64_t frames, image::ImageSize size, image::ResampleFilter filter, const VisionConfig& vision);

  /// Adds the next frame, uint8 [3, height, width]. The tensor may be reused after the call.
  void add(const at::Tensor& frame);
  /// Returns all patches. Repeats the last frame to fill the last temporal patch. REQUIRES: called
  /// once, after the last add().
  at::Tensor finish();

 private:
  /// Copies a resized frame to its patches.
  void write(const at::Tensor& resized);

  image::ResampleFilter filter_;
  data::PatchGrid grid_;
  int64_t patch_size_, frames_per_patch_, merge_size_;
  at::Tensor patches_;
  at::Tensor last_frame_;  // resized
  int64_t num_written_frames_ = 0;
};

/// Returns the resized frame with index `frame`, uint8 [3, height, width], from the patches of a
/// PatchWriter. `grid` is their grid.
at::Tensor extract_frame(const at::Tensor& patches, const data::PatchGrid& grid, int64_t frame,
                         const VisionConfig& vision);

}  // namespace vlmtrain::models::qwen2_vl
