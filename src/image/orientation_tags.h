#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "image/orientation.h"

namespace vlmtrain::image {

/// What a file tells of its picture's orientation. EXIF counts before XMP, and of several the last, as in Pillow; of
/// EXIF in several pieces the first, which the others continue.
class OrientationTags {
 public:
  void add_exif(std::span<const uint8_t> exif) {
    if (!exif_seen_) exif_ = exif_orientation(exif);
    exif_seen_ = true;
  }
  void replace_exif(std::span<const uint8_t> exif) {
    exif_ = exif_orientation(exif);
    exif_seen_ = true;
  }
  void add_xmp(std::string_view packet) { xmp_ = xmp_orientation(packet); }

  Orientation orientation() const { return exif_.value_or(xmp_.value_or(Orientation::kUpright)); }

 private:
  bool exif_seen_ = false;
  std::optional<Orientation> exif_, xmp_;
};

}  // namespace vlmtrain::image
