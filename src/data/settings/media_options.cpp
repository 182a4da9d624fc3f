#include "vlmtrain/data/media_options.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::data {

namespace {

using nlohmann::ordered_json;

/// Limit of data.volume.size per axis. 1024³ voxels are 4 GiB in fp32; no known model takes more.
constexpr int64_t kMaxVoxelsPerAxis = 1024;
/// Limits of data.volume.spacing in mm. Values outside of them are probably in another unit.
constexpr double kMinSpacingMm = 0.05, kMaxSpacingMm = 50;

/// Parses one number for all three axes, or a list of three. Returns nothing for other values, or
/// if `is_valid` rejects a number.
template <class T, class IsValid>
std::optional<image::PerAxis<T>> parse_axis_values(const ordered_json& value, const IsValid& is_valid) {
  const auto is_valid_number = [&](const ordered_json& number) {
    return (std::is_integral_v<T> ? number.is_number_integer() : number.is_number()) && is_valid(number.get<T>());
  };
  if (is_valid_number(value)) return image::PerAxis<T>{value.get<T>(), value.get<T>(), value.get<T>()};
  if (!value.is_array() || value.size() != 3 || !std::ranges::all_of(value, is_valid_number)) return std::nullopt;
  return value.get<image::PerAxis<T>>();
}

template <class T>
ordered_json axis_values_to_json(const std::optional<image::PerAxis<T>>& axes) {
  if (!axes) return "auto";
  const auto& [first, second, third] = *axes;
  if (first == second && second == third) return first;
  return *axes;
}

/// Adds an option with one number for each axis. `expected` is the error message for invalid
/// values.
template <class T, class IsValid>
void add_axes_option(OptionTable& table, std::string_view key, std::optional<image::PerAxis<T>>& axes_option,
                     const IsValid& is_valid, const std::string& expected, const OptionInfo& info) {
  table.add_structured_option(
      key, "float, list (of three) or auto", [&axes_option] { return axis_values_to_json(axes_option); },
      [&axes_option, is_valid, expected](const ordered_json& value) -> std::optional<std::string> {
        if (value == "auto") {
          axes_option.reset();
          return std::nullopt;
        }
        const auto axes = parse_axis_values<T>(value, is_valid);
        if (!axes) return expected;
        axes_option = *axes;
        return std::nullopt;
      },
      info);
}

/// Maximum absolute value of the ends of a window. Voxels are computed in fp32, where a larger
/// width may overflow.
constexpr double kMaxWindowValue = 1e30;

/// Returns whether the value is a list of two increasing numbers.
bool is_increasing_pair(const ordered_json& value) {
  const auto is_in_bounds = [](const ordered_json& number) {
    return number.is_number() && std::abs(number.get<double>()) <= kMaxWindowValue;
  };
  return value.is_array() && value.size() == 2 && std::ranges::all_of(value, is_in_bounds) && value[0] < value[1];
}

std::optional<std::string> parse_percentiles(const ordered_json& value, std::array<double, 2>& percentiles) {
  if (!is_increasing_pair(value) || value[0] < 0 || value[1] > 100) {
    return "must be two increasing numbers from 0 to 100, such as [0.5, 99.5]";
  }
  percentiles = value.get<std::array<double, 2>>();
  return std::nullopt;
}

std::optional<std::string> parse_windows(const ordered_json& value, std::vector<std::array<double, 2>>& windows) {
  const bool is_window_list =
      value.is_array() && (value.empty() || value.size() == 3) && std::ranges::all_of(value, is_increasing_pair);
  if (!is_increasing_pair(value) && !is_window_list) {
    return "must be the values for black and white, such as [-160, 240], or three such pairs for red, green and blue";
  }
  windows = is_window_list ? value.get<std::vector<std::array<double, 2>>>()
                           : std::vector{value.get<std::array<double, 2>>()};
  return std::nullopt;
}

ordered_json windows_to_json(const std::vector<std::array<double, 2>>& windows) {
  return windows.size() == 1 ? ordered_json(windows.front()) : ordered_json(windows);
}

}  // namespace

io::BoxSettings BoxOptions::make_box_settings() const {
  io::BoxSettings settings{.unit = {}, .pattern = pattern};
  if (input == BoxInput::kAbsolute) settings.unit = io::CoordinateUnit::kAbsolute;
  if (input == BoxInput::kNormalized1) settings.unit = io::CoordinateUnit::kNormalized1;
  if (input == BoxInput::kNormalized1000) settings.unit = io::CoordinateUnit::kNormalized1000;
  return settings;
}

void declare_options(OptionTable& table, BoxOptions& options) {
  table.add_enum(
      keys::data::kBoxesIn, options.input,
      {{"none", BoxInput::kNone},
       {"absolute", BoxInput::kAbsolute},
       {"normalized_1", BoxInput::kNormalized1},
       {"normalized_1000", BoxInput::kNormalized1000}},
      {.doc = "Unit of coordinates in the texts of turns, which are rewritten for the model as the image is resized, "
              "padded and cropped (docs/reference/data-formats.md). none: texts are not searched for coordinates. "
              "absolute: pixels of the image. normalized_1: 0 to 1. normalized_1000: 0 to 1000. Also the unit of boxes "
              "under `objects` without a `bbox_type`, which are in pixels with none.",
       .resume = ResumeRule::kIfRequested});
  table.add(
      keys::data::kBoxesPattern, options.pattern,
      {.doc =
           "Regular expression (PCRE2) that finds the coordinates. Its groups are x1, y1, x2, y2 of a box or x, y of "
           "a point, in this order or with these names (`(?<x1>\\d+)`). Empty: boxes such as `[x1, y1, x2, y2]` and "
           "`(x1,y1),(x2,y2)`.",
       .resume = ResumeRule::kIfRequested});
  table.add_enum(
      keys::data::kBoxesOut, options.conversion.output,
      {{"model", BoxOutput::kModel},
       {"unchanged", BoxOutput::kUnchanged},
       {"absolute", BoxOutput::kAbsolute},
       {"normalized_1", BoxOutput::kNormalized1},
       {"normalized_1000", BoxOutput::kNormalized1000},
       {"location_tokens", BoxOutput::kLocationTokens}},
      {.doc = "How coordinates are written for the model. model: as in the training data of the model family "
              "(docs/reference/data-formats.md). unchanged: the numbers of the data. absolute: pixels of the resized "
              "image. normalized_1: 0 to 1. normalized_1000: 0 to 1000. location_tokens: `<loc0000>` to `<loc1023>`.",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"norm_bbox"}, .text = "data.boxes.out: the format of the model family by default"}}});
  table.add_enum(
      keys::data::kBoxesOrientation, options.conversion.orientation,
      {{"displayed", BoxOrientation::kDisplayed}, {"stored", BoxOrientation::kStored}},
      {.doc = "The image in which boxes are given, for photos with an EXIF orientation. displayed: as viewers show "
              "it. stored: as its pixels are stored, before it is rotated.",
       .resume = ResumeRule::kIfRequested});
}

void declare_options(OptionTable& table, VolumeOptions& options) {
  using image::SlicePlane;
  using image::TimeSeriesMode;
  using image::VolumeNormalization;
  table.add_enum(
      keys::data::kVolumeAs, options.input_form,
      {{"volume", VolumeInputForm::kVolume}, {"slices", VolumeInputForm::kSlices}},
      {.doc = "How a model receives a scan (NIfTI). volume: as a volume, for families that take volumes. slices: as "
              "several images at its placeholder, for families that take several images (docs/how-to/volumes.md).",
       .resume = ResumeRule::kIfRequested});
  add_axes_option<int64_t>(
      table, keys::data::kVolumeSize, options.size, [](int64_t side) { return side >= 8 && side <= kMaxVoxelsPerAxis; },
      fmt::format("must be auto, a number of voxels from 8 to {}, or three such numbers, towards right, front and top",
                  kMaxVoxelsPerAxis),
      {.doc = "Size in voxels of the grid that volumes are resampled to: one number, or three, towards the subject's "
              "right, front and top. auto: the size that the model was made for.",
       .resume = ResumeRule::kIfRequested,
       .unit = "voxels"});
  add_axes_option<double>(
      table, keys::data::kVolumeSpacing, options.spacing,
      [](double spacing) { return spacing >= kMinSpacingMm && spacing <= kMaxSpacingMm; },
      fmt::format("must be auto, a number of mm from {} to {}, or three such numbers", kMinSpacingMm, kMaxSpacingMm),
      {.doc = "Voxel spacing in millimeters. Voxels beyond data.volume.size are then cropped, and missing ones are "
              "padded with 0. auto: the whole field of view is resampled to that size, whatever its spacing.",
       .resume = ResumeRule::kIfRequested,
       .unit = "mm"});
  table.add_enum(
      keys::data::kVolumeNormalization, options.normalization,
      {{"zscore", VolumeNormalization::kZScore},
       {"zscore_foreground", VolumeNormalization::kZScoreForeground},
       {"percentile", VolumeNormalization::kPercentile},
       {"window", VolumeNormalization::kWindow},
       {"none", VolumeNormalization::kNone}},
      {.doc =
           "Normalization of voxel values. zscore: mean 0 and standard deviation 1 over all voxels. zscore_foreground: "
           "the same over the voxels that are not 0. percentile: data.volume.percentiles are mapped to 0 and 1, and "
           "values beyond them are clipped. window: the same with data.volume.window, for CT.",
       .resume = ResumeRule::kIfRequested});
  table.add_structured_option(
      keys::data::kVolumePercentiles, "list (of two floats)", [&options] { return ordered_json(options.percentiles); },
      [&options](const ordered_json& value) { return parse_percentiles(value, options.percentiles); },
      {.doc = "Percentiles of a volume that data.volume.normalization=percentile maps to 0 and 1.",
       .resume = ResumeRule::kIfRequested});
  table.add_structured_option(
      keys::data::kVolumeWindow, "list (of two floats, or of three such lists)",
      [&options] { return windows_to_json(options.windows); },
      [&options](const ordered_json& value) { return parse_windows(value, options.windows); },
      {.doc =
           "Values that data.volume.normalization=window maps to 0 and 1, or that are black and white in slices; in CT "
           "[-160, 240] for soft tissue. Slices may have three windows, for red, green and blue. Empty: slices use the "
           "percentiles 0.5 and 99.5.",
       .resume = ResumeRule::kIfRequested});
  table.add_enum(
      keys::data::kVolumeSeries, options.time_series_mode,
      {{"refuse", TimeSeriesMode::kRejected},
       {"mean", TimeSeriesMode::kMean},
       {"frames", TimeSeriesMode::kSampledFrames}},
      {.doc = "Handling of files with a time axis (functional MRI). refuse: a bad sample. mean: the mean of the "
              "frames is one volume. frames: up to data.volume.max_frames frames, evenly spaced, are a volume each, "
              "at the same placeholder.",
       .resume = ResumeRule::kFree});
  table.add(keys::data::kVolumeMaxFrames, options.max_frames,
            {.doc = "Maximum number of frames used per series.", .resume = ResumeRule::kFree, .unit = "frames"},
            between<int64_t>(1, 4096));
  table.add_enum(
      keys::data::kVolumeDtype, options.dtype, {{"float32", kFloatType}, {"float16", kHalfType}},
      {.doc = "Data type in which volumes are stored until the model receives them. float16 halves their memory and "
              "the data copied to the device.",
       .resume = ResumeRule::kIfRequested});
  table.add(keys::data::kVolumeSlices, options.max_slices,
            {.doc = "Maximum number of slices per volume with data.volume.as=slices, evenly spaced.",
             .resume = ResumeRule::kFree,
             .unit = "slices"},
            between<int64_t>(1, 4096));
  table.add_enum(
      keys::data::kVolumePlane, options.plane,
      {{"axial", SlicePlane::kAxial}, {"coronal", SlicePlane::kCoronal}, {"sagittal", SlicePlane::kSagittal}},
      {.doc = "Orientation of the slices.", .resume = ResumeRule::kIfRequested});
}

image::VolumeSettings VolumeOptions::make_volume_settings(image::PerAxis<int64_t> default_size) const {
  image::VolumeSettings settings{.size = size.value_or(default_size),
                                 .spacing = spacing,
                                 .normalization = normalization,
                                 .percentiles = percentiles,
                                 .time_series_mode = time_series_mode,
                                 .max_frames = max_frames,
                                 .dtype = dtype};
  if (normalization != image::VolumeNormalization::kWindow) return settings;
  if (windows.size() != 1) {
    throw usage_error(
        "data.volume.normalization=window: data.volume.window has {} windows; set the values that are mapped to 0 and "
        "1, such as data.volume.window=[-160,240]",
        windows.size());
  }
  settings.window = windows.front();
  return settings;
}

image::SliceSettings VolumeOptions::make_slice_settings() const {
  return {.max_slices = max_slices, .plane = plane, .windows = windows};
}

}  // namespace vlmtrain::data
