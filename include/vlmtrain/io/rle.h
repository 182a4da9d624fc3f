#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace vlmtrain::io {

/// A mask as run lengths, as COCO's annotations store it (https://cocodataset.org/#format-data; pycocotools' maskApi).
struct Rle {
  int64_t height;
  int64_t width;
  /// Of pixels that are not in the mask, that are, that are not …, down each column, the leftmost column first.
  /// They add up to height × width; only the first is 0, where the mask begins at once, in what pycocotools writes.
  std::vector<int64_t> counts;

  bool operator==(const Rle&) const = default;
};

/// A mask of more pixels is refused; image::kMaxImagePixels.
inline constexpr int64_t kMaxMaskPixels = 178'956'970;

/// Of {"size": [height, width], "counts": […]} and of {"size": …, "counts": "compressed"}, the latter as text or as
/// bytes. A data error, a sentence that begins with "a mask" and ends with the remedy, where runs do not fill the mask
/// exactly or anything is missing or malformed.
Rle parse_rle(const nlohmann::json& value);

/// The counts as the string of pycocotools: each but the first three as the difference to the last but one, in groups
/// of five bits from the lowest on, a character from '0' to 'o' a group. REQUIRES: counts as parse_rle checks them.
std::string compress_counts(const Rle& rle);

}  // namespace vlmtrain::io
