#pragma once

#include <cstdint>
#include <span>

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
inline bool swaps_sides(Orientation orientation) {
  return orientation >= Orientation::kTransposed;
}

/// The orientation in a block of EXIF data (a TIFF header and its first directory, with or without "Exif\0\0" before
/// it); upright where the block has none or is malformed: a broken tag is no reason to lose a picture.
Orientation exif_orientation(std::span<const uint8_t> exif);

}  // namespace vlmtrain::image
