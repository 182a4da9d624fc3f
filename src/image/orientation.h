#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace vlmtrain::image {

/// The values of EXIF's Orientation tag (0x0112): where the stored picture's first row and column belong.
enum class Orientation : uint8_t {
  kUpright = 1,
  kMirrored = 2,
  kHalfTurn = 3,
  kFlipped = 4,
  kTransposed = 5,
  kQuarterTurn = 6,  ///< to be turned clockwise
  kTransverse = 7,
  kThreeQuarterTurn = 8,
};

/// Whether the upright picture's height is the stored one's width.
inline bool swaps_axes(Orientation orientation) {
  return orientation >= Orientation::kTransposed;
}

/// The orientation in a block of EXIF data (a TIFF header and its first directory, with or without "Exif\0\0" before
/// it); nothing where the block has no such tag or is malformed, upright where the tag says nothing that there is: a
/// broken tag is no reason to lose a picture.
std::optional<Orientation> exif_orientation(std::span<const uint8_t> exif);

/// The orientation in an XMP packet, found as Pillow finds it (Image.getexif): the first digit behind
/// `tiff:Orientation="` or `tiff:Orientation>`, wherever it stands; nothing where there is none. Upright for 0 and 9.
std::optional<Orientation> xmp_orientation(std::string_view packet);

}  // namespace vlmtrain::image
