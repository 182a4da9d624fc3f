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

/// Settings of a checkpoint's preprocessor_config.json that affect pixels. An image is padded,
/// resized, cropped and normalized, in this order.
struct ImageProcessorSettings {
  bool pad_to_square = false;  ///< pad to a centered square with the color of normalization.mean
  /// Length in pixels that the shorter side is scaled to; nothing: images are resized to
  /// `resized_size`, regardless of the aspect ratio.
  std::optional<int64_t> shortest_edge;
  image::ImageSize resized_size{};            ///< used without shortest_edge
  std::optional<image::ImageSize> crop_size;  ///< center crop; a smaller image is padded with black
  image::ResampleFilter filter = image::ResampleFilter::kBicubic;
  image::Normalization normalization{};

  /// Returns the size of all outputs of prepare_image(); nothing if it depends on the image.
  std::optional<image::ImageSize> get_fixed_output_size() const;
};

/// Reads the settings of a CLIPImageProcessor, LlavaImageProcessor or SiglipImageProcessor. Missing
/// keys have transformers' default for that type. Throws UserError (kBadData) with the key for
/// other types and unsupported settings.
ImageProcessorSettings read_image_processor_settings(const PreprocessorConfig& config);

/// Loads the settings of the checkpoint in `folder`, whose config.json is `config`. In the original
/// format, preprocessor_config.json may be missing; then the published settings of CLIP or SigLIP
/// apply at the tower's image size. Padding depends on image_aspect_ratio of config.json in that
/// format. Throws UserError (kBadData) if the images do not have the tower's size or if the file is
/// missing.
ImageProcessorSettings load_image_processor_settings(const Config& config, const std::filesystem::path& folder);

/// Throws UserError (kBadData) if padding or resizing would enlarge an image of `size` to more than
/// image::kMaxImagePixels.
void check_image_size(image::ImageSize size, const ImageProcessorSettings& settings);

/// Returns the tower's input for an image: uint8 [3, height, width] as from image::decode_image() →
/// uint8 [3, height, width] of settings.get_fixed_output_size(). Bitwise equal to transformers 5.23
/// with torchvision 0.29. Throws as check_image_size(). Thread-safe.
at::Tensor prepare_image(const at::Tensor& image, const ImageProcessorSettings& settings);

/// Processor of LLaVA (transformers' LlavaProcessor). Each image is one tile and a fixed number of
/// `<image>` tokens. In the original format, the texts between images are tokenized separately, as
/// in LLaVA's code, whose tokenizer has no image token.
class Processor final : public ConversationProcessor {
 public:
  /// Creates the processor. `masks` is set for a model that predicts masks. Throws UserError
  /// (kBadData) if the tokenizer does not match `config`.
  Processor(Config config, ImageProcessorSettings images, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
            ProcessorSettings settings, std::optional<MaskInputSettings> masks);

 private:
  MediaLayout lay_out_image(image::ImageSize size, std::optional<int64_t> max_pixels) const override;
  at::Tensor preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const override;
  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const override;
  /// Tokenizes the texts between `images` images separately (original format).
  EncodedChat encode_text_segments(const text::RenderedChat& chat, size_t images) const;

  Config config_;
  ImageProcessorSettings image_settings_;
};

}  // namespace vlmtrain::models::llava
