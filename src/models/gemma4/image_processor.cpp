#include "models/gemma4/image_processor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::models::gemma4 {

namespace {

using image::ImageSize;

constexpr double kRescaleFactor = 1.0 / 255.0;
constexpr PreprocessorConfig::ChannelValues kIdentityMean{0, 0, 0}, kIdentityStd{1, 1, 1};

/// Throws UserError unless the file converts pixels to the range from 0 to 1, as the model does.
void check_pixel_range(const PreprocessorConfig& file) {
  file.check_key_is_true("do_rescale");
  const image::Normalization normalization = file.get_normalization(kIdentityMean, kIdentityStd);
  if (normalization.rescale_factor != kRescaleFactor) {
    throw data_error("{}: rescale_factor is {}, which is not supported; Gemma 4 needs 1/255", file.name(),
                     normalization.rescale_factor);
  }
  // Published files normalize video frames with mean 0 and deviation 1, which has no effect.
  if (normalization.mean == kIdentityMean && normalization.std == kIdentityStd) return;
  if (!file.value("do_normalize", true)) return;
  throw data_error(
      "{}: image_mean is [{}] and image_std [{}], but Gemma 4 normalizes pixels itself; set do_normalize to false",
      file.name(), fmt::join(normalization.mean, ", "), fmt::join(normalization.std, ", "));
}

}  // namespace

ImageSize compute_resized_size(ImageSize size, int64_t max_tokens, const PatchShape& shape) {
  const int64_t side = shape.pixels_per_token_side();
  const auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  const double scale = std::sqrt(static_cast<double>(max_tokens * side * side) / (height * width));
  const auto count_tokens = [side](double pixels) {
    return static_cast<int64_t>(std::floor(pixels / static_cast<double>(side)));
  };
  int64_t rows = count_tokens(scale * height), columns = count_tokens(scale * width);
  if (rows == 0) {
    rows = 1;
    columns = std::min(size.width / size.height, max_tokens);
  } else if (columns == 0) {
    columns = 1;
    rows = std::min(size.height / size.width, max_tokens);
  }
  return {.height = rows * side, .width = columns * side};
}

const std::set<std::string_view>& get_pixel_config_keys() {
  static const std::set<std::string_view> keys{
      // supported
      "patch_size", "max_soft_tokens", "pooling_kernel_size", "resample", "image_mean", "image_std", "rescale_factor",
      "do_resize", "do_rescale", "do_normalize", "image_processor_type", "feature_extractor_type",
      // without effect on pixels
      "do_convert_rgb", "processor_class", "return_tensors", "data_format", "input_data_format", "device",
      "disable_grouping", "default_to_square", "_valid_processor_keys", "_processor_class", "image_seq_length",
      "model_input_names"};
  return keys;
}

PixelSettings read_pixel_settings(const PreprocessorConfig& file, const PixelSettings& defaults,
                                  const PatchShape& shape) {
  file.check_key_is_true("do_resize");
  check_pixel_range(file);
  file.check_equals_config("patch_size", shape.patch_size, "vision_config");
  file.check_equals_config("pooling_kernel_size", shape.pooling_size, "vision_config");
  PixelSettings settings = defaults;
  settings.max_tokens = file.value("max_soft_tokens", settings.max_tokens);
  if (std::ranges::find(kTokenBudgets, settings.max_tokens) == kTokenBudgets.end()) {
    throw data_error("{}: max_soft_tokens is {}; supported: {}", file.name(), settings.max_tokens,
                     fmt::join(kTokenBudgets, ", "));
  }
  if (file.find("resample") != nullptr) settings.filter = file.get_resample_filter(3);
  return settings;
}

int64_t limit_token_budget(int64_t max_tokens, std::optional<int64_t> max_pixels, const PatchShape& shape) {
  if (!max_pixels) return max_tokens;
  int64_t budget = kTokenBudgets.front();
  for (const int64_t tokens : kTokenBudgets) {
    if (tokens <= max_tokens && tokens * shape.pixels_per_token() <= *max_pixels) budget = tokens;
  }
  return budget;
}

void check_max_pixels(std::optional<int64_t> max_pixels, const PatchShape& shape) {
  const int64_t min_pixels = kTokenBudgets.front() * shape.pixels_per_token();
  if (!max_pixels || *max_pixels >= min_pixels) return;
  throw usage_error(
      "{} is {}, but Gemma 4 needs at least {} pixels per image, its smallest budget of {} tokens; raise "
      "it to that or more",
      keys::data::kImageMaxPixels, *max_pixels, min_pixels, kTokenBudgets.front());
}

PixelSettings read_image_settings(const std::filesystem::path& folder, const PatchShape& shape,
                                  std::optional<int64_t> max_pixels) {
  const auto file = PreprocessorConfig::find_for_images(folder);
  if (!file) throw make_missing_image_config_error(folder);
  const std::string_view type = shape.merges_patches ? "Gemma4UnifiedImageProcessor" : "Gemma4ImageProcessor";
  file->get_processor_type(type, {type});
  file->reject_other_keys(get_pixel_config_keys());
  PixelSettings settings = read_pixel_settings(*file, {}, shape);
  check_max_pixels(max_pixels, shape);
  settings.max_tokens = limit_token_budget(settings.max_tokens, max_pixels, shape);
  return settings;
}

}  // namespace vlmtrain::models::gemma4
