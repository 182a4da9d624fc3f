#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/gemma3/family.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::gemma3 {

/// Settings of pan and scan, transformers' crops of long images in addition to the full image.
struct PanAndScanSettings {
  int64_t min_crop_size = 256;    ///< minimum side of a crop, in pixels
  int64_t max_crops = 4;          ///< per image
  double min_aspect_ratio = 1.2;  ///< minimum ratio of the longer to the shorter side of a cropped image
};

/// Settings of preprocessor_config.json that affect pixels.
struct ImageProcessorSettings {
  int64_t side = 896;  ///< side of the square that images and crops are resized to, in pixels
  image::ResampleFilter filter = image::ResampleFilter::kBilinear;
  image::Normalization normalization{};
  std::optional<PanAndScanSettings> pan_and_scan = std::nullopt;  ///< nothing: no crops

  /// Reads the settings of a Gemma3ImageProcessor. Throws UserError (kBadData) with the key for
  /// other types and unsupported settings.
  static ImageProcessorSettings read(const PreprocessorConfig& config);
  /// Reads the settings of the checkpoint in `folder`, whose config.json is `config`. Throws
  /// UserError (kBadData) if image size or number of tokens differ from those of `config`.
  static ImageProcessorSettings read(const Config& config, const std::filesystem::path& folder);
};

/// Region of an image, in pixels from the upper left corner.
struct Crop {
  int64_t top, left, height, width;
  bool operator==(const Crop&) const = default;
};

/// Returns the crops that follow the full image, from left to right or from top to bottom. Returns
/// none if the aspect ratio is below min_aspect_ratio, if a crop would be shorter than
/// min_crop_size, or without `settings`. As transformers' pan_and_scan_batched().
std::vector<Crop> compute_crops(image::ImageSize size, const std::optional<PanAndScanSettings>& settings);

/// Returns the full image and its crops, resized: uint8 [3, height, width] → uint8 [1 + crops, 3,
/// side, side]. Bitwise equal to transformers 5.23 with torchvision 0.29. Thread-safe.
at::Tensor resize_image_and_crops(const at::Tensor& image, const ImageProcessorSettings& settings);

inline constexpr std::string_view kStartOfImage = "<start_of_image>";
inline constexpr std::string_view kImageToken = "<image_soft_token>";
inline constexpr std::string_view kEndOfImage = "<end_of_image>";

/// Returns the text of an image with `num_crops` crops: for the full image and for each crop, line
/// breaks, kStartOfImage, `tokens_per_image` times kImageToken, kEndOfImage and line breaks. With
/// crops, the sentence of transformers' Gemma3Processor introduces them.
std::string format_image_text(int64_t tokens_per_image, int64_t num_crops);

/// Returns the processor of Gemma 3 (transformers' Gemma3Processor). Throws UserError (kBadData) if
/// the tokenizer does not match `config`.
std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessorSettings& images,
                                          text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                                          const ProcessorSettings& settings);

}  // namespace vlmtrain::models::gemma3
