#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/gemma3/config.h"
#include "models/processing/conversation_processor.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/image/resize.h"

namespace vlmtrain::models::gemma3 {

/// The settings of pan and scan: crops of long images in addition to the full image.
struct PanAndScan {
  int64_t min_crop_size = 256;  ///< minimum side of a crop, in pixels
  int64_t max_crops = 4;
  double min_ratio = 1.2;  ///< of the longer to the shorter side, for crops to be made
};

/// The part of preprocessor_config.json that affects pixels.
struct ImageProcessorSettings {
  int64_t side = 896;  ///< of the square that images and crops are resized to, in pixels
  image::Filter filter = image::Filter::kBilinear;
  image::Normalization normalization{};
  std::optional<PanAndScan> pan_and_scan = std::nullopt;

  /// Reads the settings of a Gemma3ImageProcessor. Throws UserError (kBadData), which names the
  /// key, for other types and unsupported settings.
  static ImageProcessorSettings read(const PreprocessorConfig& config);
  /// Reads the settings of the checkpoint in `folder`. Throws UserError (kBadData) if their size is
  /// not the tower's.
  static ImageProcessorSettings read(const Config& config, const std::filesystem::path& folder);
};

/// A region of an image, in pixels.
struct Crop {
  int64_t top, left, height, width;
  bool operator==(const Crop&) const = default;
};

/// Returns the crops that follow the full image, from left to right or from top to bottom; none if
/// the image is not long. As transformers' pan_and_scan_batched().
std::vector<Crop> compute_crops(image::ImageSize size, const std::optional<PanAndScan>& settings);

/// Returns an image and its crops, bitwise equal to transformers 5.23 with torchvision 0.29: uint8
/// [3, height, width] → uint8 [1 + crops, 3, side, side]. Thread-safe.
at::Tensor prepare_image(const at::Tensor& image, const ImageProcessorSettings& settings);

inline constexpr std::string_view kStartOfImage = "<start_of_image>";
inline constexpr std::string_view kImageToken = "<image_soft_token>";
inline constexpr std::string_view kEndOfImage = "<end_of_image>";

/// Returns the text of an image: markers, tokens and line breaks, for the full image and for each
/// crop.
std::string format_image_text(int64_t image_tokens, int64_t crops);

/// Implements transformers' Gemma3Processor.
class Processor final : public ConversationProcessor {
 public:
  Processor(Config config, ImageProcessorSettings images, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
            ProcessorSettings settings);

 private:
  MediaLayout layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  std::vector<MediaPreview> preview_images(const at::Tensor& rows, const MediaLayout& layout, image::ImageSize size,
                                           std::optional<int64_t> max_pixels) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const override;

  Config config_;
  ImageProcessorSettings images_;
};

}  // namespace vlmtrain::models::gemma3
