#include "models/llava/processor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "models/checkpoints/config_checks.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models::llava {

namespace {

using image::ImageSize;
using nlohmann::json;
using ChannelValues = PreprocessorConfig::ChannelValues;

constexpr ChannelValues kSiglipMeanAndStd{0.5, 0.5, 0.5};

[[noreturn]] void throw_invalid_size_error(const PreprocessorConfig& config, const char* key, const json& value) {
  throw data_error(
      "{}: {} is {}; supported: a number of pixels, {{\"shortest_edge\": PIXELS}} and {{\"height\": PIXELS, "
      "\"width\": PIXELS}}",
      config.name(), key, io::make_json_excerpt(value));
}

bool is_valid_side(const json& value) {
  return value.is_number_integer() && value > 0 && value <= kMaxImageSide;
}

/// Returns the size in `value`: `height` and `width`, or one number for both.
ImageSize read_size(const PreprocessorConfig& config, const char* key, const json& value) {
  if (is_valid_side(value)) return {value.get<int64_t>(), value.get<int64_t>()};
  const bool is_valid = value.is_object() && value.size() == 2 && value.contains("height") && value.contains("width") &&
                        is_valid_side(value["height"]) && is_valid_side(value["width"]);
  if (!is_valid) throw_invalid_size_error(config, key, value);
  return {value["height"].get<int64_t>(), value["width"].get<int64_t>()};
}

/// Reads `size`: the shorter side if it has that key, or if it is one number (older files) without
/// default_to_square.
void read_resize_settings(const PreprocessorConfig& config, ImageProcessorSettings& settings) {
  const json* size = config.find("size");
  if (size == nullptr) return;
  settings.shortest_edge.reset();
  if (!config.value("default_to_square", false) && is_valid_side(*size)) {
    settings.shortest_edge = size->get<int64_t>();
  } else if (size->is_object() && size->size() == 1 && size->contains("shortest_edge")) {
    if (!is_valid_side((*size)["shortest_edge"])) throw_invalid_size_error(config, "size", *size);
    settings.shortest_edge = (*size)["shortest_edge"].get<int64_t>();
  } else {
    settings.resized_size = read_size(config, "size", *size);
  }
}

/// Pads uint8 [3, height, width] to a square with the color of `mean`, whose values are from 0 to
/// 1. As expand2square of LLaVA's original code.
at::Tensor pad_image_to_square(const at::Tensor& image, const ChannelValues& mean) {
  const int64_t height = image.size(1), width = image.size(2), side = std::max(height, width);
  if (height == width) return image;
  at::Tensor padded_image = at::empty({3, side, side}, at::kByte);
  for (int64_t channel = 0; channel < 3; ++channel) {
    padded_image.select(0, channel).fill_(static_cast<int64_t>(mean[static_cast<size_t>(channel)] * 255));
  }
  padded_image.narrow(1, (side - height) / 2, height).narrow(2, (side - width) / 2, width).copy_(image);
  return padded_image;
}

ImageSize scale_shortest_edge(ImageSize size, int64_t edge) {
  // Python's int(edge * long / short).
  const auto scale_longer_edge = [edge](int64_t longer_side, int64_t shorter_side) {
    return static_cast<int64_t>(static_cast<double>(edge * longer_side) / static_cast<double>(shorter_side));
  };
  if (size.width <= size.height) return {scale_longer_edge(size.height, size.width), edge};
  return {edge, scale_longer_edge(size.width, size.height)};
}

/// Throws UserError if the enlarged size exceeds image::kMaxImagePixels. An image that is one pixel
/// wide would be enlarged thousands of times.
void check_enlarged_size(ImageSize size, ImageSize enlarged_size, const char* action) {
  if (enlarged_size.height <= image::kMaxImagePixels / std::max<int64_t>(enlarged_size.width, 1)) return;
  throw data_error("{} x {} pixels are {} to {} x {}, above the limit of {} pixels; crop the image", size.width,
                   size.height, action, enlarged_size.width, enlarged_size.height, image::kMaxImagePixels);
}

/// Overlap of an image with its center crop along one dimension, in pixels: `length` pixels are
/// copied from `source_offset` in the image to `target_offset` in the crop.
struct CropOverlap {
  int64_t source_offset, target_offset, length;
};

CropOverlap compute_center_overlap(int64_t image_size, int64_t crop_size) {
  if (image_size >= crop_size) return {(image_size - crop_size) / 2, 0, crop_size};
  return {0, (crop_size - image_size) / 2, image_size};
}

at::Tensor center_crop(const at::Tensor& image, ImageSize crop_size) {
  const CropOverlap rows = compute_center_overlap(image.size(1), crop_size.height);
  const CropOverlap columns = compute_center_overlap(image.size(2), crop_size.width);
  at::Tensor cropped = at::zeros({3, crop_size.height, crop_size.width}, at::kByte);
  cropped.narrow(1, rows.target_offset, rows.length)
      .narrow(2, columns.target_offset, columns.length)
      .copy_(image.narrow(1, rows.source_offset, rows.length).narrow(2, columns.source_offset, columns.length));
  return cropped;
}

std::string repeat_text(std::string_view text, int64_t times) {
  std::string result;
  for (int64_t i = 0; i < times; ++i) result += text;
  return result;
}

}  // namespace

std::optional<ImageSize> ImageProcessorSettings::get_fixed_output_size() const {
  if (crop_size) return crop_size;
  if (!shortest_edge) return resized_size;
  return pad_to_square ? std::optional<ImageSize>({*shortest_edge, *shortest_edge}) : std::nullopt;
}

ImageProcessorSettings read_image_processor_settings(const PreprocessorConfig& config) {
  const auto type = config.get_processor_type("CLIPImageProcessor", {"CLIPImageProcessor", "CLIPFeatureExtractor",
                                                                     "LlavaImageProcessor", "SiglipImageProcessor"});
  config.reject_other_keys({// read here
                            "size", "default_to_square", "crop_size", "resample", "image_mean", "image_std",
                            "rescale_factor", "do_center_crop", "do_pad", "image_processor_type",
                            "feature_extractor_type", "do_resize", "do_rescale", "do_normalize", "do_convert_rgb",
                            // without effect on pixels
                            "processor_class", "return_tensors", "data_format", "input_data_format", "device",
                            "disable_grouping", "_valid_processor_keys", "_processor_class", "image_seq_length",
                            "pad_size", "model_input_names", "aspect_ratio_setting"});
  for (const std::string_view key : {"do_resize", "do_rescale", "do_normalize"}) config.check_key_is_true(key);

  ImageProcessorSettings settings;
  settings.filter = config.get_resample_filter(3);
  if (type == "SiglipImageProcessor") {
    settings.resized_size = {224, 224};
    read_resize_settings(config, settings);
    settings.normalization = config.get_normalization(kSiglipMeanAndStd, kSiglipMeanAndStd);
  } else {
    settings.shortest_edge = 224;
    read_resize_settings(config, settings);
    settings.normalization = config.get_normalization(kClipMean, kClipStd);
    if (config.value("do_center_crop", true)) {
      const json* crop_size = config.find("crop_size");
      settings.crop_size = crop_size == nullptr ? ImageSize{224, 224} : read_size(config, "crop_size", *crop_size);
    }
  }
  if (config.value("do_pad", false)) {
    if (type != "LlavaImageProcessor") {
      throw data_error("{}: do_pad is not supported in a {}; only LlavaImageProcessor pads to a square", config.name(),
                       type);
    }
    settings.pad_to_square = true;
  }
  return settings;
}

ImageProcessorSettings load_image_processor_settings(const Config& config, const std::filesystem::path& folder) {
  const int64_t side = config.vision.image_size;
  ImageProcessorSettings settings;
  if (const auto file = PreprocessorConfig::find_for_images(folder)) {
    settings = read_image_processor_settings(*file);
    const auto size = settings.get_fixed_output_size();
    if (!size || *size != ImageSize{side, side}) {
      const auto description =
          size ? fmt::format("{} x {} pixels", size->width, size->height) : "images of various sizes";
      throw data_error("{}: makes {}, but config.json's vision tower needs {} x {} (image_size); they must be equal",
                       file->name(), description, side, side);
    }
  } else if (config.checkpoint_format == CheckpointFormat::kHuggingFace) {
    throw make_missing_image_config_error(folder);
  } else if (config.tower_type == VisionTowerType::kClip) {
    settings.shortest_edge = side;
    settings.crop_size = ImageSize{side, side};
    settings.normalization = {kClipMean, kClipStd, 1.0 / 255.0};
  } else {
    settings.resized_size = {side, side};
    settings.normalization = {kSiglipMeanAndStd, kSiglipMeanAndStd, 1.0 / 255.0};
  }
  if (config.checkpoint_format == CheckpointFormat::kOriginal) settings.pad_to_square = config.pad_to_square;
  return settings;
}

void check_image_size(ImageSize size, const ImageProcessorSettings& settings) {
  const int64_t longer_side = std::max(size.height, size.width);
  const ImageSize padded_size = settings.pad_to_square ? ImageSize{longer_side, longer_side} : size;
  check_enlarged_size(size, padded_size, "padded");
  if (settings.shortest_edge)
    check_enlarged_size(size, scale_shortest_edge(padded_size, *settings.shortest_edge), "resized");
}

ImageView compute_image_view(ImageSize size, const ImageProcessorSettings& settings) {
  const int64_t side = std::max(size.height, size.width);
  const ImageSize padded_size = settings.pad_to_square ? ImageSize{side, side} : size;
  const ImageSize resized_size =
      settings.shortest_edge ? scale_shortest_edge(padded_size, *settings.shortest_edge) : settings.resized_size;
  ImageView view = make_resized_view(padded_size, resized_size);
  const int64_t left = (padded_size.width - size.width) / 2, top = (padded_size.height - size.height) / 2;
  view.offset_x = static_cast<double>(left) * view.scale_x;
  view.offset_y = static_cast<double>(top) * view.scale_y;
  if (!settings.crop_size) return view;
  const CropOverlap rows = compute_center_overlap(resized_size.height, settings.crop_size->height);
  const CropOverlap columns = compute_center_overlap(resized_size.width, settings.crop_size->width);
  view.offset_x += static_cast<double>(columns.target_offset - columns.source_offset);
  view.offset_y += static_cast<double>(rows.target_offset - rows.source_offset);
  view.size = *settings.crop_size;
  return view;
}

at::Tensor prepare_image(const at::Tensor& image, const ImageProcessorSettings& settings) {
  check_image_size({image.size(1), image.size(2)}, settings);
  const at::Tensor padded_image =
      settings.pad_to_square ? pad_image_to_square(image, settings.normalization.mean) : image;
  const ImageSize size = settings.shortest_edge ? scale_shortest_edge({padded_image.size(1), padded_image.size(2)},
                                                                      *settings.shortest_edge)
                                                : settings.resized_size;
  const at::Tensor resized = image::resize_image(padded_image, size.height, size.width, settings.filter);
  return settings.crop_size ? center_crop(resized, *settings.crop_size) : resized;
}

namespace {

/// Converts each image to one tile.
class SingleTileReader final : public ImageReader {
 public:
  SingleTileReader(const ImageProcessorSettings& settings, int64_t tokens_per_image)
      : settings_(settings), tokens_per_image_(tokens_per_image) {}

  MediaLayout lay_out(ImageSize size, std::optional<int64_t> /*max_pixels*/) const override {
    check_image_size(size, settings_);
    return {.text = repeat_text(text::kImagePlaceholder, tokens_per_image_), .pixel_rows = 1};
  }
  ImageView compute_view(ImageSize size, std::optional<int64_t> /*max_pixels*/) const override {
    return compute_image_view(size, settings_);
  }
  at::Tensor preprocess(const at::Tensor& image, std::optional<int64_t> /*max_pixels*/) const override {
    return prepare_image(image, settings_).unsqueeze(0);
  }

 private:
  ImageProcessorSettings settings_;
  int64_t tokens_per_image_;
};

/// Tokenizes the texts between images separately, as tokenizer_image_token of LLaVA's original
/// code. Only the first text gets the tokenizer's special tokens.
class SegmentEncoder final : public ChatEncoder {
 public:
  SegmentEncoder(text::Tokenizer tokenizer, text::ChatTemplate chat_template, int64_t tokens_per_image)
      : ChatEncoder(std::move(tokenizer), std::move(chat_template), {}), tokens_per_image_(tokens_per_image) {}

  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> media) const override {
    constexpr int64_t kPlaceholderTokenId = 0;  // any id is valid: an image feature replaces its embedding
    text::Encoding joined_encoding;
    EncodedChat encoded_chat;
    size_t begin = 0;
    for (size_t image = 0;; ++image) {
      const size_t end = image < media.size() ? chat.media.at(image).span.begin : chat.text.size();
      const auto segment_encoding = tokenizer().encode(std::string_view(chat.text).substr(begin, end - begin),
                                                       image == 0 && needs_special_tokens(chat));
      joined_encoding.ids.insert(joined_encoding.ids.end(), segment_encoding.ids.begin(), segment_encoding.ids.end());
      for (const uint32_t start : segment_encoding.starts)
        joined_encoding.starts.push_back(start + static_cast<uint32_t>(begin));
      if (image == media.size()) break;
      for (int64_t i = 0; i < tokens_per_image_; ++i) {
        encoded_chat.image_token_positions.push_back(std::ssize(joined_encoding.ids));
        joined_encoding.ids.push_back(kPlaceholderTokenId);
        joined_encoding.starts.push_back(static_cast<uint32_t>(end));
      }
      begin = chat.media[image].span.end;
    }
    encoded_chat.label_mask = text::compute_label_mask(joined_encoding, chat.text, chat.answers);
    encoded_chat.label_weights =
        text::compute_label_weights(joined_encoding, chat.text, chat.answers, chat.answer_weights);
    encoded_chat.token_ids = std::move(joined_encoding.ids);
    return encoded_chat;
  }

 private:
  int64_t tokens_per_image_;
};

std::unique_ptr<ChatEncoder> make_encoder(const Config& config, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template) {
  if (config.checkpoint_format == CheckpointFormat::kOriginal) {
    return std::make_unique<SegmentEncoder>(std::move(tokenizer), std::move(chat_template), config.tokens_per_image());
  }
  return std::make_unique<ChatEncoder>(std::move(tokenizer), std::move(chat_template),
                                       ChatEncoderSettings{.image_token_id = *config.image_token_id});
}

}  // namespace

std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessorSettings& images,
                                          text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                                          const ProcessorSettings& settings, std::optional<MaskInputSettings> masks) {
  auto encoder = make_encoder(config, std::move(tokenizer), std::move(chat_template));
  check_vocabulary(encoder->tokenizer(), config.text.vocab_size);
  if (config.checkpoint_format != CheckpointFormat::kOriginal) {
    check_token_id(encoder->tokenizer(), text::kImagePlaceholder, "image_token_index", *config.image_token_id);
  }
  const int64_t side = config.vision.image_size;
  return std::make_unique<ConversationProcessor>(
      ProcessorParts{.encoder = std::move(encoder),
                     .readers = {.images = std::make_unique<SingleTileReader>(images, config.tokens_per_image())},
                     .input = {.row = {.height = side, .width = side}, .image_tokens = config.tokens_per_image()},
                     .masks = std::move(masks),
                     .boxes = {.notation = CoordinateNotation::kNormalized1}},
      settings);
}

}  // namespace vlmtrain::models::llava
