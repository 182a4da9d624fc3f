#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "models/processing/preprocessor_config.h"
#include "models/qwen2_vl/config.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/data/shape.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/image/resize.h"

namespace vlmtrain::models::qwen2_vl {

/// Pixels that a picture may have after resizing.
struct PixelBudget {
  int64_t min_pixels;
  int64_t max_pixels;
};

/// The size a picture is resized to: both sides multiples of `factor`, the ratio kept as far as that goes, within the
/// budget as far as a ratio allows it; the arithmetic is transformers'. Throws UserError (kBadData) for a picture more
/// than 200 times as long as wide, which the models were never shown.
/// Throws UserError (kBadData) for a picture that is too long for its width.
void check_ratio(image::ImageSize size);

image::ImageSize smart_resize(image::ImageSize size, int64_t factor, PixelBudget budget);

/// How pictures, or frames of videos, are brought to the tower's input.
struct PixelSettings {
  PixelBudget budget{};
  image::Filter filter = image::Filter::kBicubic;
  image::Normalization normalization{};
};

/// Reads the values that images and videos have alike, of a Qwen2VLImageProcessor or Qwen2VLVideoProcessor; what the
/// file leaves out has transformers' default, `budget` included, `mean` and `deviation` of pixels too. A data error
/// names the key of a setting that is not followed, or of a patch that is not the tower's.
PixelSettings read_pixel_settings(const PreprocessorConfig& file, PixelBudget budget, const VisionConfig& vision,
                                  const PreprocessorConfig::ChannelValues& mean = kClipMean,
                                  const PreprocessorConfig::ChannelValues& deviation = kClipStd);

/// Settings for images: those of preprocessor_config.json, or of processor_config.json. `max_pixels`
/// (data.image_max_pixels) limits an image; where that is below what pictures are enlarged to, they are enlarged to
/// that.
PixelSettings read_image_settings(const std::filesystem::path& folder, const VisionConfig& vision,
                                  std::optional<int64_t> max_pixels);

/// The most pixels that a budget has.
inline constexpr int64_t kMaxBudgetPixels = int64_t{1} << 40;

/// `budget` with no more than `max_pixels`, neither as the most nor as the least.
PixelBudget limit_budget(PixelBudget budget, std::optional<int64_t> max_pixels);

/// Writes the budget into the settings of a processor, under each of the names that they have for it.
void write_pixel_budget(nlohmann::ordered_json& settings, PixelBudget budget);

/// The keys that read_pixel_settings() reads, and those known to leave pixels alone.
const std::set<std::string_view>& get_pixel_keys();

/// What a picture of this size is resized to: whole tokens.
image::ImageSize compute_resized_size(image::ImageSize size, const PixelSettings& settings, const VisionConfig& vision);

/// The patches of `frames` frames resized to `size`, the last one repeated until they fill temporal patches.
data::PatchGrid compute_grid(int64_t frames, image::ImageSize size, const VisionConfig& vision);

/// The tokens that patches become.
data::PatchGrid compute_token_grid(const data::PatchGrid& patches, const VisionConfig& vision);

/// What a picture or video of these patches becomes, without what is written around it.
data::SampleShape make_shape(const data::PatchGrid& grid, const VisionConfig& vision);

/// Brings frames one by one to patches, uint8 [patches, 3, temporal_patch_size · patch_size, patch_size] of
/// compute_grid() them: the frames of a patch one above the other. Patches lie frame by frame, token by token. To the
/// bit as transformers 5.23 does with torchvision 0.29.
class PatchWriter {
 public:
  /// For so many frames, at least one, that are to be resized to `size`.
  PatchWriter(int64_t frames, image::ImageSize size, image::Filter filter, const VisionConfig& vision);

  /// The next frame, uint8 [3, height, width]; it is not looked at after the call.
  void add(const at::Tensor& frame);
  /// All patches; where frames are missing from the last ones, the last frame is repeated. Once, after the last add().
  at::Tensor finish();

 private:
  void write(const at::Tensor& resized);

  image::Filter filter_;
  data::PatchGrid grid_;
  int64_t patch_, depth_, merge_;
  at::Tensor patches_;
  at::Tensor last_;  // as resized
  int64_t frames_ = 0;
};

/// A frame, uint8 [3, height, width], out of the patches that a PatchWriter made.
at::Tensor extract_frame(const at::Tensor& patches, const data::PatchGrid& grid, int64_t frame,
                         const VisionConfig& vision);

}  // namespace vlmtrain::models::qwen2_vl
