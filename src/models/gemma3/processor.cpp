#include "models/gemma3/processor.h"

#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/checkpoints/config_checks.h"
#include "models/media/medium.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/media_preview.h"

namespace vlmtrain::models::gemma3 {

namespace {

using image::ImageSize;
using nlohmann::json;

constexpr PreprocessorConfig::ChannelValues kDefaultMeanAndStd{0.5, 0.5, 0.5};

int64_t read_image_side(const PreprocessorConfig& config) {
  constexpr int64_t kDefaultImageSide = 224;
  const json* const size = config.find("size");
  if (size == nullptr) return kDefaultImageSide;
  const auto has_valid_side = [&](const char* key) {
    const auto it = size->find(key);
    return it != size->end() && it->is_number_integer() && *it > 0 && *it <= kMaxImageSide;
  };
  if (size->is_object() && has_valid_side("height") && has_valid_side("width") &&
      (*size)["height"] == (*size)["width"]) {
    return (*size)["height"].get<int64_t>();
  }
  throw data_error("{}: size is {}; supported: {{\"height\": PIXELS, \"width\": PIXELS}} with two equal numbers",
                   config.name(), io::make_json_excerpt(*size));
}

/// Reads the settings of pan and scan. The keys are null in published files; transformers' defaults
/// apply then.
std::optional<PanAndScanSettings> read_pan_and_scan_settings(const PreprocessorConfig& config) {
  if (!config.value("do_pan_and_scan", false)) return std::nullopt;
  PanAndScanSettings settings;
  settings.min_crop_size = config.value("pan_and_scan_min_crop_size", settings.min_crop_size);
  settings.max_crops = config.value("pan_and_scan_max_num_crops", settings.max_crops);
  settings.min_aspect_ratio = config.value("pan_and_scan_min_ratio_to_activate", settings.min_aspect_ratio);
  constexpr int64_t kMaxCrops = 1024;  // published files have 4; 1,024 rejects only damaged files
  check_size(settings.min_crop_size, "pan_and_scan_min_crop_size", kMaxImageSide, config.name());
  check_size(settings.max_crops, "pan_and_scan_max_num_crops", kMaxCrops, config.name());
  check_number(settings.min_aspect_ratio, "pan_and_scan_min_ratio_to_activate", {0, 1e6}, config.name());
  return settings;
}

int64_t ceil_div(int64_t length, int64_t parts) {
  return (length + parts - 1) / parts;
}

std::string format_single_image_text(int64_t tokens_per_image) {
  std::string text = fmt::format("\n\n{}", kStartOfImage);
  for (int64_t i = 0; i < tokens_per_image; ++i) text += kImageToken;
  return text += fmt::format("{}\n\n", kEndOfImage);
}

}  // namespace

ImageProcessorSettings ImageProcessorSettings::read(const PreprocessorConfig& config) {
  config.get_processor_type("Gemma3ImageProcessor", {"Gemma3ImageProcessor"});
  config.reject_other_keys({// read here
                            "size", "resample", "image_mean", "image_std", "rescale_factor", "do_resize", "do_rescale",
                            "do_normalize", "do_pan_and_scan", "pan_and_scan_min_crop_size",
                            "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate", "image_processor_type",
                            "feature_extractor_type",
                            // without effect on pixels
                            "do_convert_rgb", "processor_class", "return_tensors", "data_format", "input_data_format",
                            "device", "disable_grouping", "default_to_square", "_valid_processor_keys",
                            "_processor_class", "image_seq_length", "model_input_names"});
  for (const std::string_view key : {"do_resize", "do_rescale", "do_normalize"}) config.check_key_is_true(key);
  return {.side = read_image_side(config),
          .filter = config.get_resample_filter(2),
          .normalization = config.get_normalization(kDefaultMeanAndStd, kDefaultMeanAndStd),
          .pan_and_scan = read_pan_and_scan_settings(config)};
}

ImageProcessorSettings ImageProcessorSettings::read(const Config& config, const std::filesystem::path& folder) {
  const auto file = PreprocessorConfig::find_for_images(folder);
  if (!file) throw make_missing_image_config_error(folder);
  const ImageProcessorSettings settings = read(*file);
  if (settings.side != config.vision.image_size) {
    throw data_error(
        "{}: resizes images to a side of {} pixels, but config.json's vision tower needs {} (image_size); they must be "
        "equal",
        file->name(), settings.side, config.vision.image_size);
  }
  const auto tokens = file->value<int64_t>("image_seq_length", config.tokens_per_image());
  if (tokens != config.tokens_per_image()) {
    throw data_error("{}: image_seq_length is {} and config.json's mm_tokens_per_image {}; they must be equal",
                     file->name(), tokens, config.tokens_per_image());
  }
  return settings;
}

std::vector<Crop> compute_crops(ImageSize size, const std::optional<PanAndScanSettings>& settings) {
  if (!settings) return {};
  const bool is_wide = size.width >= size.height;
  const int64_t longer_side = std::max(size.width, size.height), shorter_side = std::min(size.width, size.height);
  const double aspect_ratio = static_cast<double>(longer_side) / static_cast<double>(shorter_side);
  if (aspect_ratio < settings->min_aspect_ratio) return {};
  // As many crops as the rounded aspect ratio, but none shorter than min_crop_size.
  auto count = static_cast<int64_t>(std::floor(aspect_ratio + 0.5));
  count = std::min(longer_side / settings->min_crop_size, count);
  count = std::min(settings->max_crops, std::max<int64_t>(2, count));
  const int64_t length = ceil_div(longer_side, count);
  if (std::min(length, shorter_side) < settings->min_crop_size) return {};
  std::vector<Crop> crops;
  for (int64_t first = 0; first < std::min(count * length, longer_side); first += length) {
    const int64_t crop_length = std::min(length, longer_side - first);
    crops.push_back(is_wide ? Crop{.top = 0, .left = first, .height = shorter_side, .width = crop_length}
                            : Crop{.top = first, .left = 0, .height = crop_length, .width = shorter_side});
  }
  return crops;
}

at::Tensor resize_image_and_crops(const at::Tensor& image, const ImageProcessorSettings& settings) {
  const auto resize_to_square = [&](const at::Tensor& region) {
    return image::resize_image(region, settings.side, settings.side, settings.filter);
  };
  // The full image first, then its crops.
  std::vector<at::Tensor> rows{resize_to_square(image)};
  for (const Crop& crop : compute_crops({image.size(1), image.size(2)}, settings.pan_and_scan)) {
    rows.push_back(resize_to_square(image.narrow(1, crop.top, crop.height).narrow(2, crop.left, crop.width)));
  }
  return at::stack(rows);
}

std::string format_image_text(int64_t tokens_per_image, int64_t num_crops) {
  std::string single_image_text = format_single_image_text(tokens_per_image);
  if (num_crops == 0) return single_image_text;
  std::string text =
      fmt::format("Here is the original image {} and here are some crops to help you see better ", single_image_text);
  for (int64_t crop = 0; crop < num_crops; ++crop) text += (crop == 0 ? "" : " ") + single_image_text;
  return text;
}

namespace {

/// Converts an image to one tile and further tiles for its crops.
class CropReader final : public ImageReader {
 public:
  CropReader(const ImageProcessorSettings& settings, int64_t tokens_per_image)
      : settings_(settings), tokens_per_image_(tokens_per_image) {}

  MediaLayout lay_out(ImageSize size, std::optional<int64_t> /*max_pixels*/) const override {
    const auto num_crops = std::ssize(compute_crops(size, settings_.pan_and_scan));
    return {.text = format_image_text(tokens_per_image_, num_crops), .pixel_rows = 1 + num_crops};
  }
  ImageView compute_view(ImageSize size, std::optional<int64_t> /*max_pixels*/) const override {
    return make_resized_view(size, {.height = settings_.side, .width = settings_.side});
  }
  at::Tensor preprocess(const at::Tensor& image, std::optional<int64_t> /*max_pixels*/) const override {
    return resize_image_and_crops(image, settings_);
  }
  std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout, ImageSize size,
                                    std::optional<int64_t> max_pixels) const override {
    auto previews = ImageReader::preview(rows, layout, size, max_pixels);
    for (MediaPreview& preview : previews) preview.is_crop = true;
    previews.front() = previews.size() > 1 ? make_overview_preview(rows.select(0, 0)) : previews.front();
    previews.front().is_crop = false;
    return previews;
  }

 private:
  ImageProcessorSettings settings_;
  int64_t tokens_per_image_;
};

}  // namespace

std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessorSettings& images,
                                          text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                                          const ProcessorSettings& settings) {
  auto encoder = std::make_unique<ChatEncoder>(std::move(tokenizer), std::move(chat_template),
                                               ChatEncoderSettings{.image_token_id = config.image_token_id});
  check_vocabulary(encoder->tokenizer(), config.text.vocab_size);
  check_token_id(encoder->tokenizer(), kImageToken, "image_token_index", config.image_token_id);
  check_token_id(encoder->tokenizer(), kStartOfImage, "boi_token_index", config.image_start_token_id);
  check_token_id(encoder->tokenizer(), kEndOfImage, "eoi_token_index", config.image_end_token_id);
  const int64_t side = config.vision.image_size;
  return std::make_unique<ConversationProcessor>(
      ProcessorParts{
          .encoder = std::move(encoder),
          .readers = {.images = std::make_unique<CropReader>(images, config.tokens_per_image())},
          .input = {.row = {.height = side, .width = side}, .image_tokens = config.tokens_per_image()},
          .boxes = {.notation = CoordinateNotation::kLocationTokens, .box = "{y1}{x1}{y2}{x2}", .point = "{y1}{x1}"}},
      settings);
}

}  // namespace vlmtrain::models::gemma3
