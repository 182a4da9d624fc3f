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

}  // namespace vlmtrain::image
