#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "image/codec/orientation.h"

namespace vlmtrain::image {

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
