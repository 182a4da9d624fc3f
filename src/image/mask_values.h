#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "image/codecs.h"
#include "vlmtrain/io/notice.h"

namespace vlmtrain::image {

/// How the pixels of a file become mask or not, where no value is asked for.
struct MaskRule {
  /// Gray values above it are mask; of RGB and palettes 0, so that all that is not black, or not entry 0, is.
  int64_t threshold = 0;
  std::optional<io::Notice> notice = {};  ///< of a file that says more than mask or not
};

/// Finds the rule:
/// - one value other than 0: what is not 0 is mask;
/// - a mask with soft edges: what is above half of the range is. Of the pixels above half, half or more are in the
/// upper
///   tenth of the range, and they are more than four times the lower ones that are not 0; or just more, in a file of
///   more than 8 values; or there are more than 64 values;
/// - labels, which are no more than 192 gray values, 256 palette entries or 256 colors: all of them are mask.
/// Throws UserError (kBadData) that names `name` for anything else: a few low values next to the highest one, which may
/// be noise or labels with a border, or an image.
MaskRule find_mask_rule(const PngSamples& samples, const std::string& name);

}  // namespace vlmtrain::image
