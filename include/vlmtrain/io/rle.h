#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// A run-length encoded mask in COCO's format (https://cocodataset.org/#format-data; pycocotools'
/// maskApi).
struct Rle {
  int64_t height;
  int64_t width;
  /// Lengths of alternating runs of pixels, in column-major order: the first run is outside of the
  /// mask, the second inside. Their sum is height × width. pycocotools writes 0 only as the first
  /// count, for a mask that contains the first pixel.
  std::vector<int64_t> counts;

  bool operator==(const Rle&) const = default;
};

/// Largest number of pixels of a mask, equal to image::kMaxImagePixels.
inline constexpr int64_t kMaxMaskPixels = 178'956'970;

/// Parses {"size": [height, width], "counts": COUNTS}. COUNTS is a list of numbers, or pycocotools'
/// compressed string as text or bytes. Throws data_error, whose message begins with "a mask", if a
/// field is malformed, the mask has more than kMaxMaskPixels, or the runs do not fill it exactly.
Rle parse_rle(const RecordJson& value);

/// Returns the counts in pycocotools' compressed string format (rleToString of maskApi.c). From the
/// fourth count on, the difference to the count two positions earlier is written. A number is split
/// into groups of five bits, lowest first, and each group becomes one character from '0' to 'o'.
/// REQUIRES: counts are valid as in parse_rle().
std::string encode_rle_counts(const Rle& rle);

}  // namespace vlmtrain::io
