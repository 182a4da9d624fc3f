#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "image/codec/codecs.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

/// The rule that decides which pixels of a file are set in the mask.
struct MaskRule {
  /// Gray values above it are set. 0 for RGB and palettes: all pixels other than black or entry 0
  /// are set.
  int64_t threshold = 0;
  std::optional<io::Notice> notice = {};  ///< of files with soft edges or several labels
};

/// Finds the rule for a mask without a requested value:
///
///   - One value other than 0: all nonzero pixels are set.
///   - A mask with soft edges: pixels above half of the range are set. At least half of them lie in
///     the upper tenth of the range, and they are more than four times the other nonzero pixels; or
///     simply more of them, in a file of more than 8 values; or the file has more than 64 values.
///   - Labels, that is, at most 192 gray values, 256 palette entries or 256 colors: all nonzero
///     pixels are set.
///
/// Throws UserError (kBadData), with `name`, for other files: an image, or a few low values and a
/// high one, which may be noise or labels with a border.
MaskRule find_mask_rule(const PngSamples& samples, const std::string& name);

}  // namespace vlmtrain::image
