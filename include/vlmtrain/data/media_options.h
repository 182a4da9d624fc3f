#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/options.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/volume.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::data {

/// Values of data.boxes.in: the unit of coordinates in the texts of the data.
enum class BoxInput { kNone, kAbsolute, kNormalized1, kNormalized1000 };

/// Values of data.boxes.out: how boxes are written for the model.
enum class BoxOutput {
  kModel,      ///< in the format of the model family's training data
  kUnchanged,  ///< with the numbers of the data
  kAbsolute,
  kNormalized1,
  kNormalized1000,
  kLocationTokens
};

/// Values of data.boxes.orientation: the image in whose pixels boxes are given.
enum class BoxOrientation {
  kDisplayed,  ///< after its EXIF orientation is applied, as viewers show it
  kStored,     ///< before
};

/// The settings of the conversion of boxes by a processor.
struct BoxConversion {
  BoxOutput output = BoxOutput::kModel;
  BoxOrientation orientation = BoxOrientation::kDisplayed;
};

/// The section `data.boxes` of the configuration. declare_options() documents the values.
struct BoxOptions {
  BoxInput input = BoxInput::kNone;
  std::string pattern;
  BoxConversion conversion;

  /// Returns the settings of the record reader.
  io::BoxSettings make_box_settings() const;
};

/// Declares the keys data.boxes.* with their types, defaults and descriptions. `options` must outlive
/// `table`.
void declare_options(OptionTable& table, BoxOptions& options);

/// Values of data.volume.as: the form in which the model receives scans.
enum class VolumeInputForm {
  kVolume,  ///< volumes, for families that take them
  kSlices,  ///< 2D images, for families that take images
};

/// The section `data.volume` of the configuration: the conversion of NIfTI files. declare_options()
/// documents the values.
struct VolumeOptions {
  VolumeInputForm input_form = VolumeInputForm::kVolume;
  std::optional<image::PerAxis<int64_t>> size;    ///< voxels; nothing: the size of the model
  std::optional<image::PerAxis<double>> spacing;  ///< mm; nothing: the whole field of view is resampled to `size`
  image::VolumeNormalization normalization = image::VolumeNormalization::kZScore;
  std::array<double, 2> percentiles{0.5, 99.5};
  /// Windows [black, white]: none, one, or for slices one each for red, green and blue.
  std::vector<std::array<double, 2>> windows;
  image::TimeSeriesMode time_series_mode = image::TimeSeriesMode::kRejected;
  int64_t max_frames = 8;
  at::ScalarType dtype = kFloatType;
  int64_t max_slices = 32;
  image::SlicePlane plane = image::SlicePlane::kAxial;

  /// Returns the settings of the volume reader, with `default_size` if `size` is not set. Throws
  /// UserError (kUsage) if `normalization` is kWindow and there is not exactly one window.
  image::VolumeSettings make_volume_settings(image::PerAxis<int64_t> default_size) const;
  /// Returns the settings for slices.
  image::SliceSettings make_slice_settings() const;
};

/// Declares the keys data.volume.* with their types, defaults, checks and descriptions. `options`
/// must outlive `table`.
void declare_options(OptionTable& table, VolumeOptions& options);

}  // namespace vlmtrain::data
