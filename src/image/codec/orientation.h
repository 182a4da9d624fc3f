#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "image/codec/codecs.h"

namespace vlmtrain::image {

/// The operation that makes a stored image upright, with the values of EXIF's Orientation tag
/// (0x0112).
enum class Orientation : uint8_t {
  kUpright = 1,
  kFlipHorizontal = 2,  ///< exchange left and right
  kRotate180 = 3,
  kFlipVertical = 4,  ///< exchange top and bottom
  kTranspose = 5,     ///< exchange rows and columns
  kRotate90Clockwise = 6,
  kTransverse = 7,  ///< kTranspose, then kRotate180
  kRotate90Counterclockwise = 8,
};

/// Returns whether applying the orientation exchanges height and width.
inline bool swaps_axes(Orientation orientation) {
  return orientation >= Orientation::kTranspose;
}

/// Returns the orientation in a block of EXIF data: a TIFF header and its first directory, with or
/// without a leading "Exif\0\0". Returns nothing if the block has no Orientation tag or is
/// malformed, and kUpright for an invalid value. Does not throw: corrupt metadata must not make an
/// image unusable.
std::optional<Orientation> parse_exif_orientation(std::span<const uint8_t> exif);

/// Returns the orientation in an XMP packet as Pillow's Image.getexif does: the first digit after
/// `tiff:Orientation="` or `tiff:Orientation>`, anywhere in the packet. Returns nothing
/// if the packet has no such digit, and kUpright for 0 and 9.
std::optional<Orientation> parse_xmp_orientation(std::string_view packet);

/// The orientation from all metadata of a file, with the precedence of Pillow: EXIF before XMP. Of
/// several XMP packets the last counts. Of several EXIF segments the first counts, since the others
/// continue it.
class OrientationTags {
 public:
  /// Adds a segment of EXIF data.
  void add_exif(std::span<const uint8_t> exif) {
    if (!has_exif_) exif_orientation_ = parse_exif_orientation(exif);
    has_exif_ = true;
  }
  /// Adds complete EXIF data, which replaces earlier data.
  void replace_exif(std::span<const uint8_t> exif) {
    exif_orientation_ = parse_exif_orientation(exif);
    has_exif_ = true;
  }
  /// Adds an XMP packet, which replaces earlier packets.
  void replace_xmp(std::string_view packet) { xmp_orientation_ = parse_xmp_orientation(packet); }

  /// Returns the orientation; kUpright if no metadata has one.
  Orientation orientation() const {
    return exif_orientation_.value_or(xmp_orientation_.value_or(Orientation::kUpright));
  }

 private:
  bool has_exif_ = false;
  std::optional<Orientation> exif_orientation_, xmp_orientation_;
};

/// Returns the size of an image after its orientation is applied.
ImageSize compute_upright_size(ImageSize stored_size, Orientation orientation);

/// Applies the orientation to interleaved RGB and writes the result to `planes` [3, height, width],
/// whose height and width are those of compute_upright_size().
void write_upright_rgb_planes(const InterleavedPixels& rgb, Orientation orientation, uint8_t* planes);

/// Applies the orientation to an image of one channel and writes the result to `plane` [height,
/// width].
void write_upright_gray_plane(const InterleavedPixels& gray, Orientation orientation, uint8_t* plane);

/// The chunks of a PNG that may contain an orientation (PNG, third edition, 11.3.3 and 11.3.2.4).
/// As in Pillow, EXIF is read from the chunk eXIf, else from ImageMagick's text "Raw profile type
/// exif", and XMP from the text "XML:com.adobe.xmp". Each text may be in any kind of text chunk.
/// Invalid metadata is ignored.
class PngMetadata {
 public:
  /// Returns whether a chunk of this type contains a text.
  static bool is_text_chunk(std::string_view chunk) { return chunk == "tEXt" || chunk == "zTXt" || chunk == "iTXt"; }

  /// Adds the data of a chunk. `chunk`: its type, eXIf or a text chunk.
  void add(std::string_view chunk, const std::vector<uint8_t>& data);

  /// Returns the orientation of the chunks added so far; kUpright if none has one.
  Orientation resolve_orientation();

 private:
  void add_text(std::string_view key, std::string text);

  OrientationTags orientation_tags_;
  bool has_exif_ = false;
  int num_relevant_texts_ = 0;  // texts with a keyword of interest so far
  std::string raw_profile_;     // the text "Raw profile type exif"
};

}  // namespace vlmtrain::image
