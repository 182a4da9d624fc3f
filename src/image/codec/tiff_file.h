#pragma once

#include <tiffio.h>

#include <cstdarg>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "image/codec/byte_source.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/size.h"

namespace vlmtrain::image {

struct TiffDeleter {
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};

/// The first image of an open TIFF file, read with libtiff.
class TiffFile {
 public:
  /// Throws UserError (kBadData) for an invalid header. Both arguments must outlive the object.
  TiffFile(ByteSource& source, const std::string& name);
  TiffFile(const TiffFile&) = delete;
  TiffFile& operator=(const TiffFile&) = delete;

  TIFF* handle() const { return tiff_.get(); }
  const std::string& name() const { return name_; }

  /// Returns the value of a numeric tag, or nothing if the file does not have the tag.
  template <class Value>
  std::optional<Value> find_tag(uint32_t tag) const {
    Value value{};
    if (TIFFGetField(tiff_.get(), tag, &value) != 1) return std::nullopt;
    return value;
  }

  /// Returns the value of a 16-bit tag, or its default.
  uint16_t get_tag(uint32_t tag, uint16_t default_value) const {
    return find_tag<uint16_t>(tag).value_or(default_value);
  }

  ImageSize size() const {
    return {find_tag<uint32_t>(TIFFTAG_IMAGELENGTH).value_or(0), find_tag<uint32_t>(TIFFTAG_IMAGEWIDTH).value_or(0)};
  }

  /// Throws UserError (kBadData) unless `is_complete` and libtiff reported neither an error nor a
  /// warning: it fills in missing pixels with a warning.
  void check_read(bool is_complete) const;

 private:
  UserError make_damaged_error() const;
  /// Stores the first error or warning. An error handler of libtiff.
  static int store_message(TIFF* tiff, void* file, const char* module, const char* format, va_list arguments);

  ByteStream stream_;
  const std::string& name_;
  std::string message_;  ///< of libtiff's first error or warning; empty if there was none
  std::unique_ptr<TIFF, TiffDeleter> tiff_;
};

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
