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

/// What a checkpoint's preprocessor_config.json says, as far as it changes pixels. The steps are done in this order.
struct ImageProcessorSettings {
  bool pad_to_square = false;            ///< to the longer side, the picture in the middle, on the image mean's colour
  std::optional<int64_t> shortest_edge;  ///< resize to this shorter side; nothing: to `resized`, not keeping the ratio
  image::ImageSize resized{};
  std::optional<image::ImageSize> crop;  ///< from the middle; where the picture is smaller, on black
  image::Filter filter = image::Filter::kBicubic;
  image::Normalization normalization{};

  /// What prepare_image() gives for every picture; nothing where it depends on the picture.
  std::optional<image::ImageSize> fixed_size() const;
};

/// Reads a CLIPImageProcessor, LlavaImageProcessor or SiglipImageProcessor; what the file leaves out has transformers'
/// default for that type. A data error, naming the key, for another one and for settings that are not followed.
ImageProcessorSettings read_image_processor_settings(const PreprocessorConfig& config);

/// The settings of the checkpoint in `folder`, which must give pictures of the tower's size. Where the folder has none,
/// as LLaVA's own code leaves them out, those that CLIP and SigLIP were published with, at the tower's size, and
/// image_aspect_ratio of config.json.
ImageProcessorSettings load_image_processor_settings(const Config& config, const std::filesystem::path& folder);

/// data_error where a picture of this size would become one beyond image::kMaxImagePixels on its way.
void check_image_size(image::ImageSize size, const ImageProcessorSettings& settings);

/// Pictures to the tower's input, to the bit as transformers 5.23 does with torchvision 0.29: uint8 [3, height, width]
/// of any size, as image::decode_image gives it, to uint8 [3, height, width] of settings.fixed_size(). Thread-safe.
at::Tensor prepare_image(const at::Tensor& image, const ImageProcessorSettings& settings);

/// LlavaProcessor of transformers: each image is one tile and so many `<image>` tokens. In the original layout the
/// tokenizer never sees an image: the texts between images are tokenized one by one, as LLaVA's own code does.
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
