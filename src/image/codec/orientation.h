#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "image/codec/codecs.h"

namespace vlmtrain::image {

/// The values of EXIF's Orientation tag (0x0112).
enum class Orientation : uint8_t {
  kUpright = 1,
  kMirrored = 2,
  kHalfTurn = 3,
  kFlipped = 4,
  kTransposed = 5,
  kQuarterTurn = 6,  ///< to be rotated clockwise
  kTransverse = 7,
  kThreeQuarterTurn = 8,
};

/// Returns whether applying the orientation exchanges height and width.
inline bool swaps_axes(Orientation orientation) {
  return orientation >= Orientation::kTransposed;
}

/// Returns the orientation in a block of EXIF data (a TIFF header and its first directory, with or
/// without a leading "Exif\0\0"). Returns nothing if the block has no such tag or is malformed, and
/// kUpright for invalid values: corrupt metadata must not make an image unusable.
std::optional<Orientation> exif_orientation(std::span<const uint8_t> exif);

/// Returns the orientation in an XMP packet as Pillow's Image.getexif does: the first digit after
/// `tiff:Orientation="` or `tiff:Orientation>`, anywhere in the packet. Returns nothing without
/// one, kUpright for 0 and 9.
std::optional<Orientation> xmp_orientation(std::string_view packet);

/// The orientation from all metadata of a file, with the precedence of Pillow: EXIF before XMP, the
/// last of several; of EXIF data in several segments, the first, which the others continue.
class OrientationTags {
 public:
  /// Adds a segment of EXIF data.
  void add_exif(std::span<const uint8_t> exif) {
    if (!exif_seen_) exif_ = exif_orientation(exif);
    exif_seen_ = true;
  }
  /// Adds complete EXIF data, which replaces earlier data.
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

/// Returns the size of an image after its orientation is applied.
ImageSize get_upright_size(ImageSize stored, Orientation orientation);

/// Writes interleaved RGB to `planes` [3, height, width] and applies the orientation.
void write_upright_planes(const StoredPixels& rgb, Orientation orientation, uint8_t* planes);

/// Writes one channel to `plane` [height, width] and applies the orientation.
void write_upright_plane(const StoredPixels& gray, Orientation orientation, uint8_t* plane);

/// The metadata of a PNG that give an orientation (PNG, third edition, 11.3.3 and 11.3.2.4), read
/// as in Pillow: chunk eXIf, else the text "Raw profile type exif" (ImageMagick's), and XMP in the
/// text "XML:com.adobe.xmp", in any kind of text chunk. Invalid metadata count as absent.
class PngMetadata {
 public:
  static bool is_text(std::string_view chunk) { return chunk == "tEXt" || chunk == "zTXt" || chunk == "iTXt"; }

  /// Adds a chunk by its type and data.
  void add(std::string_view chunk, const std::vector<uint8_t>& data);
  Orientation orientation();

 private:
  void add_text(std::string_view key, std::string text);

  OrientationTags tags_;
  bool has_exif_ = false;
  int num_texts_ = 0;  // inflated so far
  std::string raw_profile_;
};

}  // namespace vlmtrain::image
