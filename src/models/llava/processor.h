#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "models/llava/family.h"
#include "models/media/mask_input.h"
#include "models/media/media_layout.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/models/processor.h"

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

/// Returns the view of an image of `size` in the result of prepare_image().
ImageView compute_image_view(image::ImageSize size, const ImageProcessorSettings& settings);

/// Returns the tower's input for an image: uint8 [3, height, width] as from image::decode_image() →
/// uint8 [3, height, width] of settings.get_fixed_output_size(). Bitwise equal to transformers 5.23
/// with torchvision 0.29. Throws as check_image_size(). Thread-safe.
at::Tensor prepare_image(const at::Tensor& image, const ImageProcessorSettings& settings);

/// Returns the processor of LLaVA (transformers' LlavaProcessor). Each image is one tile and a fixed
/// number of `<image>` tokens. In the original format, the texts between images are tokenized
/// separately, as in LLaVA's code, whose tokenizer has no image token. `masks` is set for a model
/// that predicts masks. Throws UserError (kBadData) if the tokenizer does not match `config`.
std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessorSettings& images,
                                          text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                                          const ProcessorSettings& settings, std::optional<MaskInputSettings> masks);

}  // namespace vlmtrain::models::llava
