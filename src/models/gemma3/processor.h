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

/// When a picture that is much longer than wide is seen in crops as well.
struct PanAndScan {
  int64_t min_crop_size = 256;  ///< pixels; no side of a crop is shorter
  int64_t max_crops = 4;
  double min_ratio = 1.2;  ///< of the longer side to the shorter
};

/// What a checkpoint's preprocessor_config.json says, as far as it changes pixels.
struct ImageProcessorSettings {
  int64_t side = 896;  ///< pictures and crops are squashed to a square of it
  image::Filter filter = image::Filter::kBilinear;
  image::Normalization normalization{};
  std::optional<PanAndScan> pan_and_scan = std::nullopt;

  /// Reads a Gemma3ImageProcessor. A data error, naming the key, for another type and for settings that are not
  /// followed.
  static ImageProcessorSettings read(const PreprocessorConfig& config);
  /// The settings of the checkpoint in `folder`, whose pictures have to be of the tower's size.
  static ImageProcessorSettings read(const Config& config, const std::filesystem::path& folder);
};

/// A part of a picture.
struct Crop {
  int64_t top, left, height, width;
  bool operator==(const Crop&) const = default;
};

/// The crops of a picture of this size, which is seen whole before them, from left to right or from top to bottom; none
/// where it is seen whole only. As transformers' pan_and_scan_batched.
std::vector<Crop> compute_crops(image::ImageSize size, const std::optional<PanAndScan>& settings);

/// The picture and its crops, to the bit as transformers 5.23 with torchvision 0.29 makes them: uint8 [3, height,
/// width] of any size → uint8 [1 + crops, 3, side, side]. Thread-safe.
at::Tensor prepare_image(const at::Tensor& image, const ImageProcessorSettings& settings);

inline constexpr std::string_view kStartOfImage = "<start_of_image>";
inline constexpr std::string_view kImageToken = "<image_soft_token>";
inline constexpr std::string_view kEndOfImage = "<end_of_image>";

/// What stands for a picture in the text: marks, its tokens and line breaks, once for the whole and once for each crop.
std::string format_image_text(int64_t image_tokens, int64_t crops);

/// Gemma3Processor of transformers.
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
