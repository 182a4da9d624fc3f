#include "models/qwen2_vl/image_processor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

constexpr double kMaxAspectRatio = 200;  // MAX_RATIO of qwen-vl-utils and transformers

using image::ImageSize;
using nlohmann::json;

/// Default of Qwen2VLImageProcessor, which Qwen3-VL also uses. All published checkpoints set their
/// own.
constexpr PixelBudget kDefaultImagePixelBudget{int64_t{56} * 56, int64_t{28} * 28 * 1280};

/// Returns size.shortest_edge or size.longest_edge. Throws UserError if it is missing.
int64_t read_size_edge(const PreprocessorConfig& file, const json& size, const char* key) {
  const auto it = size.find(key);
  if (it == size.end() || !it->is_number_integer()) {
    throw data_error(
        "{}: size is {}; supported: {{\"shortest_edge\": PIXELS, \"longest_edge\": PIXELS}}, the minimum and maximum "
        "number of pixels",
        file.name(), io::make_json_excerpt(size));
  }
  return it->get<int64_t>();
}

/// Reads the budget; missing keys keep the values of `budget`.
PixelBudget read_pixel_budget(const PreprocessorConfig& file, PixelBudget budget) {
  if (const json* size = file.find("size")) {
    // min_pixels and max_pixels override the edges, which some files have as well.
    const bool are_edges_overridden = file.find("min_pixels") != nullptr && file.find("max_pixels") != nullptr;
    if (!are_edges_overridden) {
      budget = {read_size_edge(file, *size, "shortest_edge"), read_size_edge(file, *size, "longest_edge")};
    }
  }
  budget.min_pixels = file.value<int64_t>("min_pixels", budget.min_pixels);
  budget.max_pixels = file.value<int64_t>("max_pixels", budget.max_pixels);
  // The smallest images are enlarged to min_pixels, so the limit of decoded images applies to it.
  if (budget.min_pixels < 1 || budget.max_pixels < budget.min_pixels || budget.min_pixels > image::kMaxImagePixels ||
      budget.max_pixels > kMaxBudgetPixels) {
    throw data_error(
        "{}: min_pixels is {} and max_pixels {}; min_pixels must be from 1 to {} and at most max_pixels, and "
        "max_pixels at most {}",
        file.name(), budget.min_pixels, budget.max_pixels, image::kMaxImagePixels, kMaxBudgetPixels);
  }
  return budget;
}

}  // namespace

void check_aspect_ratio(image::ImageSize size) {
  const auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  if (std::max(height, width) / std::min(height, width) > kMaxAspectRatio) {
    throw data_error("{} x {} pixels: the aspect ratio exceeds Qwen-VL's limit of {}; crop it", size.width, size.height,
                     kMaxAspectRatio);
  }
}

image::ImageSize smart_resize(image::ImageSize size, int64_t factor, PixelBudget budget) {
  check_aspect_ratio(size);
  const auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  const auto unit = static_cast<double>(factor);
  const auto to_multiple = [factor](double multiples) { return static_cast<int64_t>(multiples) * factor; };
  // Python rounds half to even, as nearbyint does.
  const image::ImageSize rounded_size{to_multiple(std::nearbyint(height / unit)),
                                      to_multiple(std::nearbyint(width / unit))};
  const int64_t pixels = rounded_size.height * rounded_size.width;
  if (pixels > budget.max_pixels) {
    const double shrink_factor = std::sqrt(height * width / static_cast<double>(budget.max_pixels));
    return {std::max(factor, to_multiple(std::floor(height / shrink_factor / unit))),
            std::max(factor, to_multiple(std::floor(width / shrink_factor / unit)))};
  }
  if (pixels < budget.min_pixels) {
    const double growth_factor = std::sqrt(static_cast<double>(budget.min_pixels) / (height * width));
    return {to_multiple(std::ceil(height * growth_factor / unit)),
            to_multiple(std::ceil(width * growth_factor / unit))};
  }
  return rounded_size;
}

const std::set<std::string_view>& get_pixel_config_keys() {
  static const std::set<std::string_view> keys{
      // supported
      "size", "min_pixels", "max_pixels", "patch_size", "temporal_patch_size", "merge_size", "resample", "image_mean",
      "image_std", "rescale_factor", "do_resize", "do_rescale", "do_normalize", "do_convert_rgb",
      "image_processor_type",
      // without effect on pixels
      "processor_class", "return_tensors", "data_format", "input_data_format", "device", "disable_grouping",
      "default_to_square", "_valid_processor_keys", "_processor_class", "image_seq_length", "model_input_names"};
  return keys;
}

PixelSettings read_pixel_settings(const PreprocessorConfig& file, PixelBudget budget, const VisionConfig& vision,
                                  const PreprocessorConfig::ChannelValues& mean,
                                  const PreprocessorConfig::ChannelValues& deviation) {
  for (const std::string_view key : {"do_resize", "do_rescale", "do_normalize"}) file.check_key_is_true(key);
  file.check_equals_config("patch_size", vision.patch_size, "vision tower");
  file.check_equals_config("temporal_patch_size", vision.temporal_patch_size, "vision tower");
  file.check_equals_config("merge_size", vision.merge_size, "vision tower");
  return {.budget = read_pixel_budget(file, budget),
          .filter = file.get_resample_filter(3),
          .normalization = file.get_normalization(mean, deviation)};
}

PixelBudget limit_pixel_budget(PixelBudget budget, std::optional<int64_t> max_pixels) {
  if (!max_pixels) return budget;
  return {std::min(budget.min_pixels, *max_pixels), std::min(budget.max_pixels, *max_pixels)};
}

PixelSettings read_image_settings(const std::filesystem::path& folder, const VisionConfig& vision,
                                  std::optional<int64_t> max_pixels) {
  const auto file = PreprocessorConfig::find_for_images(folder);
  if (!file) throw make_missing_image_config_error(folder);
  file->get_processor_type("Qwen2VLImageProcessor", {"Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor"});
  file->reject_other_keys(get_pixel_config_keys());
  PixelSettings settings = read_pixel_settings(*file, kDefaultImagePixelBudget, vision);
  settings.budget = limit_pixel_budget(settings.budget, max_pixels);
  return settings;
}

void write_pixel_budget(nlohmann::ordered_json& settings, PixelBudget budget) {
  const bool has_size = settings.contains("size") && settings["size"].is_object();
  const bool has_edge_keys = has_size && settings["size"].contains("shortest_edge");
  // Sets the keys that the file has; size with both edges if it has none of them.
  const std::pair<const char*, int64_t> pixel_limits[]{{"min_pixels", budget.min_pixels},
                                                       {"max_pixels", budget.max_pixels}};
  bool has_pixel_keys = true;
  for (const auto& [key, value] : pixel_limits) {
    if (has_size && settings["size"].contains(key)) settings["size"][key] = value;
    const bool is_set = settings.contains(key) && !settings[key].is_null();
    has_pixel_keys = has_pixel_keys && is_set;
    if (is_set) settings[key] = value;
  }
  if (has_edge_keys) {
    settings["size"]["shortest_edge"] = budget.min_pixels;
    settings["size"]["longest_edge"] = budget.max_pixels;
  } else if (!has_pixel_keys) {
    settings["size"] = {{"shortest_edge", budget.min_pixels}, {"longest_edge", budget.max_pixels}};
  }
}

ImageSize compute_resized_size(ImageSize size, const PixelSettings& settings, const VisionConfig& vision) {
  return smart_resize(size, vision.pixels_per_token_side(), settings.budget);
}

}  // namespace vlmtrain::models::qwen2_vl
