#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>

#include "models/media/patch_format.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/image/size.h"

namespace vlmtrain::models::gemma4 {

/// Sizes of the patches of Gemma 4, from config.json's vision_config.
struct PatchShape {
  int64_t patch_size = 16;      ///< side of a patch, in pixels
  int64_t pooling_size = 3;     ///< pooling_kernel_size: a token covers a square of pooling_size² patches
  bool merges_patches = false;  ///< as in gemma4_unified: all pixels of a token form one patch

  /// Returns the number of pixels along a side of a token. Sides of resized images are multiples of
  /// it.
  int64_t pixels_per_token_side() const { return patch_size * pooling_size; }
  int64_t pixels_per_token() const { return pixels_per_token_side() * pixels_per_token_side(); }
  /// Returns the format of the rows of pixels: patches, or with merges_patches whole tokens.
  PatchFormat patch_format() const {
    return merges_patches ? PatchFormat{.patch_size = pixels_per_token_side()}
                          : PatchFormat{.patch_size = patch_size, .merge_size = pooling_size};
  }
};

/// The values of max_soft_tokens that transformers supports, ascending.
inline constexpr std::array<int64_t, 5> kTokenBudgets{70, 140, 280, 560, 1120};

/// Returns the size that an image of `size` is resized to, with the arithmetic of transformers'
/// get_aspect_ratio_preserving_size. Both sides are multiples of a token's side, and the image has at
/// most `max_tokens` tokens and nearly the aspect ratio of `size`. A long strip has one row or
/// column of up to `max_tokens` tokens. The errors of that function cannot occur, since a budget of
/// one token suffices. REQUIRES: max_tokens ≥ 1.
image::ImageSize compute_resized_size(image::ImageSize size, int64_t max_tokens, const PatchShape& shape);

/// Settings of the conversion of images and video frames to patches.
struct PixelSettings {
  int64_t max_tokens = 280;  ///< per image or frame, one of kTokenBudgets
  image::ResampleFilter filter = image::ResampleFilter::kBicubic;
};

/// Returns the keys that read_pixel_settings() supports, and keys that do not affect pixels.
const std::set<std::string_view>& get_pixel_config_keys();

/// Reads the settings shared by the image and video processors of Gemma 4. Missing keys have the
/// values of `defaults`. The model rescales and normalizes pixels, so a file that does so differently
/// is an error. Throws UserError (kBadData) with the key for unsupported settings, and for patches
/// other than `shape`.
PixelSettings read_pixel_settings(const PreprocessorConfig& file, const PixelSettings& defaults,
                                  const PatchShape& shape);

/// Returns the largest of kTokenBudgets that is at most `max_tokens` and whose tokens have at most
/// `max_pixels` pixels, at least the smallest budget. Without `max_pixels`, returns `max_tokens`.
int64_t limit_token_budget(int64_t max_tokens, std::optional<int64_t> max_pixels, const PatchShape& shape);

/// Throws UserError (kUsage) if `max_pixels` (data.image_max_pixels) is below the pixels of the
/// smallest budget.
void check_max_pixels(std::optional<int64_t> max_pixels, const PatchShape& shape);

/// Reads the image settings of the checkpoint in `folder` (PreprocessorConfig::find_for_images()).
/// `max_pixels` (data.image_max_pixels) limits them as limit_token_budget(). Throws as
/// read_pixel_settings() and check_max_pixels(), and for missing files and other processor types.
PixelSettings read_image_settings(const std::filesystem::path& folder, const PatchShape& shape,
                                  std::optional<int64_t> max_pixels);

}  // namespace vlmtrain::models::gemma4
