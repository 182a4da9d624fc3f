#pragma once

#include <cstdint>
#include <string>

#include "image/codec/tiff_file.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {

/// The color model of a TIFF's samples, after libtiff has converted JPEG's YCbCr to RGB.
enum class ColorModel { kGray, kInvertedGray, kPalette, kRgb, kCmyk };

enum class AlphaKind { kNone, kStraight, kPremultiplied };

/// The properties of a TIFF's samples.
struct TiffLayout {
  ColorModel color_model;
  AlphaKind alpha;
  int64_t bit_depth;                 ///< 1, 2, 4, 8 or 16
  int64_t num_samples;               ///< per pixel in the file, with those that are not read
  bool has_separate_planes = false;  ///< the file stores each sample of all pixels separately

  int64_t num_color_channels() const {
    if (color_model == ColorModel::kRgb) return 3;
    return color_model == ColorModel::kCmyk ? 4 : 1;
  }
  /// Returns the number of channels that are read: color and alpha.
  int64_t num_channels() const { return num_color_channels() + (alpha == AlphaKind::kNone ? 0 : 1); }
  /// Returns the number of samples of a pixel that follow each other in the file.
  int64_t num_adjacent_samples() const { return has_separate_planes ? 1 : num_samples; }
};

/// Returns the layout. Makes libtiff convert JPEG's YCbCr to RGB. Throws UserError (kBadData) if the
/// samples or their compression are not supported.
TiffLayout read_tiff_layout(const TiffFile& tiff);

/// Returns a UserError (kBadData) that names an unsupported property and a command that converts.
UserError make_unsupported_tiff_error(const std::string& name, const std::string& property);

}  // namespace vlmtrain::image
