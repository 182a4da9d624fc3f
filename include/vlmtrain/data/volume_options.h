#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "vlmtrain/base/options.h"
#include "vlmtrain/image/volume.h"
#include "vlmtrain/image/volume_slices.h"

namespace vlmtrain::data {

/// What a scan becomes for the model.
enum class VolumeUse {
  kVolume,  ///< of a family that takes volumes
  kSlices,  ///< pictures, of a family that takes these
};

/// The keys data.volume.*: what NIfTI files become.
struct VolumeOptions {
  VolumeUse use = VolumeUse::kVolume;
  std::optional<image::Axes<int64_t>> size;    ///< voxels; nothing: what the model was made for
  std::optional<image::Axes<double>> spacing;  ///< mm; nothing: the whole field of view is brought to `size`
  image::VolumeNormalization normalization = image::VolumeNormalization::kZScore;
  std::array<double, 2> percentiles{0.5, 99.5};
  std::vector<std::array<double, 2>> windows;  ///< none, one, or of slices three: of red, green and blue
  image::SeriesUse series = image::SeriesUse::kRefused;
  int64_t max_frames = 8;
  at::ScalarType dtype = at::kFloat;
  int64_t slices = 32;
  image::SlicePlane plane = image::SlicePlane::kAxial;

  /// As the reader of volumes wants it, `size` being `default_size` where the options name none.
  image::VolumeSettings volume_settings(image::Axes<int64_t> default_size) const;
  image::SliceSettings slice_settings() const;
};

void declare(OptionTable& table, VolumeOptions& options);

}  // namespace vlmtrain::data
