#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "models/llava/config.h"
#include "models/processing/conversation_processor.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/image/resize.h"

namespace vlmtrain::models::llava {

/// Pixel settings of a checkpoint's preprocessor_config.json. The steps run in the order of the
/// members.
struct ImageProcessorSettings {
  bool pad_to_square = false;  ///< pad to a square, image centered, filled with the image mean's color
  /// Resize the shorter side to this; nothing: to `resized`, ignoring the aspect ratio.
  std::optional<int64_t> shortest_edge;
  image::ImageSize resized{};
  std::optional<image::ImageSize> crop;  ///< center crop; a smaller image is padded with black
  image::Filter filter = image::Filter::kBicubic;
  image::Normalization normalization{};

  /// Returns the size of every output of prepare_image(); nothing where it depends on the image.
  std::optional<image::ImageSize> fixed_size() const;
};

/// Reads a CLIPImageProcessor, LlavaImageProcessor or SiglipImageProcessor; missing keys have
/// transformers' default for that type. Throws UserError (kBadData) that names the key for other
/// types and for unsupported settings.
ImageProcessorSettings read_image_processor_settings(const PreprocessorConfig& config);

/// Loads the settings of the checkpoint in `folder`, which must produce images of the tower's size.
/// A folder without the file (as LLaVA's own code writes it) has the published CLIP or SigLIP
/// settings at the tower's size, and image_aspect_ratio of config.json.
ImageProcessorSettings load_image_processor_settings(const Config& config, const std::filesystem::path& folder);

/// Throws UserError (kBadData) for an image that would exceed image::kMaxImagePixels during
/// preparation.
void check_image_size(image::ImageSize size, const ImageProcessorSettings& settings);

/// Returns the tower's input for an image, bit for bit as transformers 5.23 with torchvision 0.29:
/// uint8 [3, height, width] of image::decode_image → uint8 [3, height, width] of
/// settings.fixed_size(). Thread-safe.
at::Tensor prepare_image(const at::Tensor& image, const ImageProcessorSettings& settings);

/// Processor of LLaVA (transformers' LlavaProcessor): each image is one tile and a fixed number of
/// `<image>` tokens. In the original layout the texts between images are tokenized one by one,
/// because LLaVA's own tokenizer never receives an image.
class Processor final : public ConversationProcessor {
 public:
  Processor(Config config, ImageProcessorSettings images, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
            ProcessorSettings settings, std::optional<MaskInput> masks);

 private:
  MediaLayout layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const override;
  EncodedChat encode_text_segments(const text::RenderedChat& chat, size_t images) const;

  Config config_;
  ImageProcessorSettings images_;
};

}  // namespace vlmtrain::models::llava
