#include "vlmtrain/data/volume_options.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxVoxelsPerAxis = 1024;
/// Limits of data.volume.spacing in mm. A value outside of them is taken for a mistake of the unit.
constexpr double kMinSpacing = 0.05, kMaxSpacing = 50;

/// Parses one number for the three axes, or a list of three. Returns nothing for other values, or
/// if a number is not `is_valid`.
template <class T, class IsValid>
std::optional<image::Axes<T>> parse_axes(const ordered_json& value, const IsValid& is_valid) {
  const auto is_valid_number = [&](const ordered_json& number) {
    return (std::is_integral_v<T> ? number.is_number_integer() : number.is_number()) && is_valid(number.get<T>());
  };
  if (is_valid_number(value)) return image::Axes<T>{value.get<T>(), value.get<T>(), value.get<T>()};
  if (!value.is_array() || value.size() != 3 || !std::ranges::all_of(value, is_valid_number)) return std::nullopt;
  return value.get<image::Axes<T>>();
}

template <class T>
ordered_json axes_to_json(const std::optional<image::Axes<T>>& axes) {
  if (!axes) return "auto";
  const auto& [first, second, third] = *axes;
  if (first == second && second == third) return first;
  return *axes;
}

template <class T, class IsValid>
void add_axes(OptionTable& table, const std::string& key, std::optional<image::Axes<T>>& axes_option,
              const IsValid& is_valid, const std::string& expected, const std::string& doc) {
  table.add_structured(
      key, "number, list of three or auto", [&axes_option] { return axes_to_json(axes_option); },
      [&axes_option, is_valid, expected](const ordered_json& value) -> std::optional<std::string> {
        if (value == "auto") {
          axes_option.reset();
          return std::nullopt;
        }
        const auto axes = parse_axes<T>(value, is_valid);
        if (!axes) return expected;
        axes_option = *axes;
        return std::nullopt;
      },
      doc);
}

/// Limit of the ends of a window. Voxels are computed in fp32, where larger ends may overflow in
/// the window's width.
constexpr double kMaxWindowValue = 1e30;

bool is_range(const ordered_json& value) {
  const auto is_in_bounds = [](const ordered_json& number) {
    return number.is_number() && std::abs(number.get<double>()) <= kMaxWindowValue;
  };
  return value.is_array() && value.size() == 2 && std::ranges::all_of(value, is_in_bounds) && value[0] < value[1];
}

std::optional<std::string> set_percentiles(const ordered_json& value, std::array<double, 2>& percentiles) {
  if (!is_range(value) || value[0] < 0 || value[1] > 100) {
    return "must be two numbers from 0 to 100 that rise, such as [0.5, 99.5]";
  }
  percentiles = value.get<std::array<double, 2>>();
  return std::nullopt;
}

std::optional<std::string> set_windows(const ordered_json& value, std::vector<std::array<double, 2>>& windows) {
  const bool is_list = value.is_array() && (value.empty() || value.size() == 3) && std::ranges::all_of(value, is_range);
  if (!is_range(value) && !is_list) {
    return "must be the values that become black and white, such as [-160, 240], or three such for red, green and blue";
  }
  windows = is_list ? value.get<std::vector<std::array<double, 2>>>() : std::vector{value.get<std::array<double, 2>>()};
  return std::nullopt;
}

ordered_json windows_to_json(const std::vector<std::array<double, 2>>& windows) {
  return windows.size() == 1 ? ordered_json(windows.front()) : ordered_json(windows);
}

}  // namespace

void declare(OptionTable& table, VolumeOptions& options) {
  using image::SeriesUse;
  using image::SlicePlane;
  using image::VolumeNormalization;
  table.add_enum("data.volume.as", options.use, {{"volume", VolumeUse::kVolume}, {"slices", VolumeUse::kSlices}},
                 "What a scan (NIfTI) is to the model: a volume, of a family that takes volumes; or slices, so many "
                 "pictures at its mark, of any family that takes several (docs/volumes.md).");
  add_axes<int64_t>(
      table, "data.volume.size", options.size, [](int64_t side) { return side >= 8 && side <= kMaxVoxelsPerAxis; },
      fmt::format("must be auto, a number of voxels from 8 to {} or three such, towards right, front and top",
                  kMaxVoxelsPerAxis),
      "Voxels of the grid that volumes are brought to: one number, or three, towards the subject's right, front and "
      "top. auto: what the model was made for.");
  add_axes<double>(
      table, "data.volume.spacing", options.spacing,
      [](double spacing) { return spacing >= kMinSpacing && spacing <= kMaxSpacing; },
      fmt::format("must be auto, a number of mm from {} to {} or three such", kMinSpacing, kMaxSpacing),
      "Millimetres from voxel to voxel; what then lies beyond data.volume.size is cropped, what is missing padded with "
      "0. auto: the whole field of view is brought to that size, whatever its spacing.");
  table.add_enum("data.volume.normalization", options.normalization,
                 {{"zscore", VolumeNormalization::kZScore},
                  {"zscore_foreground", VolumeNormalization::kZScoreForeground},
                  {"percentile", VolumeNormalization::kPercentile},
                  {"window", VolumeNormalization::kWindow},
                  {"none", VolumeNormalization::kNone}},
                 "How values become comparable. zscore: mean 0 and deviation 1 of all voxels, or of those that are "
                 "not 0 (zscore_foreground). percentile: data.volume.percentiles become 0 and 1, what lies beyond "
                 "too. window: the same of data.volume.window, for CT.");
  table.add_structured(
      "data.volume.percentiles", "list of two numbers", [&options] { return ordered_json(options.percentiles); },
      [&options](const ordered_json& value) { return set_percentiles(value, options.percentiles); },
      "The percentiles of a volume that become 0 and 1 with data.volume.normalization=percentile.");
  table.add_structured(
      "data.volume.window", "list of two numbers, or of three such lists",
      [&options] { return windows_to_json(options.windows); },
      [&options](const ordered_json& value) { return set_windows(value, options.windows); },
      "The values that become 0 and 1 with data.volume.normalization=window, or black and white in slices: in CT "
      "[-160, 240] for soft tissue. Slices may have three windows, of red, green and blue. Empty: of slices the "
      "percentiles 0.5 and 99.5.");
  table.add_enum("data.volume.series", options.series,
                 {{"refuse", SeriesUse::kRefused}, {"mean", SeriesUse::kMean}, {"frames", SeriesUse::kFrames}},
                 "What becomes of a file with a time axis (functional MRI). refuse: it is a bad sample. mean: the "
                 "mean of its frames is one volume. frames: up to data.volume.max_frames of them, spread evenly, "
                 "are a volume each, at the same mark.");
  table.add("data.volume.max_frames", options.max_frames, "Most frames of a series that are looked at.",
            std::optional{between<int64_t>(1, 4096)});
  table.add_enum("data.volume.dtype", options.dtype, {{"float32", at::kFloat}, {"float16", at::kHalf}},
                 "What values of volumes are kept in until the model has them: float16 halves their memory and "
                 "their way to the device.");
  table.add("data.volume.slices", options.slices, "Most slices of a volume with data.volume.as=slices, spread evenly.",
            std::optional{between<int64_t>(1, 4096)});
  table.add_enum(
      "data.volume.plane", options.plane,
      {{"axial", SlicePlane::kAxial}, {"coronal", SlicePlane::kCoronal}, {"sagittal", SlicePlane::kSagittal}},
      "How slices lie.");
}

image::VolumeSettings VolumeOptions::volume_settings(image::Axes<int64_t> default_size) const {
  image::VolumeSettings settings{.size = size.value_or(default_size),
                                 .spacing = spacing,
                                 .normalization = normalization,
                                 .percentiles = percentiles,
                                 .series = series,
                                 .max_frames = max_frames,
                                 .dtype = dtype};
  if (normalization != image::VolumeNormalization::kWindow) return settings;
  if (windows.size() != 1) {
    throw usage_error(
        "data.volume.normalization=window: data.volume.window names {} windows; give the values that become 0 and 1, "
        "such as data.volume.window=[-160,240]",
        windows.size());
  }
  settings.window = windows.front();
  return settings;
}

image::SliceSettings VolumeOptions::slice_settings() const {
  return {.count = slices, .plane = plane, .windows = windows};
}

}  // namespace vlmtrain::data
