#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace vlmtrain::io {

/// A run-length encoded mask in COCO's format (https://cocodataset.org/#format-data; pycocotools'
/// maskApi).
struct Rle {
  int64_t height;
  int64_t width;
  /// Lengths of runs outside of the mask and inside of it, in turn, in column-major order. Their
  /// sum is height × width. pycocotools writes 0 only as the first count, for a mask that contains
  /// the first pixel.
  std::vector<int64_t> counts;

  bool operator==(const Rle&) const = default;
};

/// Largest number of pixels of a mask, equal to image::kMaxImagePixels.
inline constexpr int64_t kMaxMaskPixels = 178'956'970;

/// Parses {"size": [height, width], "counts": […]} or {"size": …, "counts": "compressed"}, the
/// latter as text or bytes. Throws data_error, a sentence that begins with "a mask", if the runs do
/// not fill the mask or a field is malformed.
Rle parse_rle(const nlohmann::json& value);

/// Returns the counts in the string format of pycocotools: each after the third as the difference
/// to the one two before it, in groups of five bits from the lowest on, with a character from '0'
/// to 'o' for each group. REQUIRES: counts are valid as in parse_rle().
std::string compress_counts(const Rle& rle);

}  // namespace vlmtrain::io
