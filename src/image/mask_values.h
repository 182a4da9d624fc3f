#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "image/codec/codecs.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

/// The rule that decides which pixels of a file are set in the mask.
struct MaskRule {
  /// Pixels with gray values above it are set. 0 for RGB (all pixels other than black are set) and
  /// for palettes (all indices other than 0 are set).
  int64_t threshold = 0;
  std::optional<io::Notice> notice = {};  ///< a warning for a file with soft edges or several labels
};

/// Finds the rule for a mask file if the record gives no `value`. The file is one of:
///
///   - Binary: it has at most one value other than 0. All nonzero pixels are set.
///   - Soft edges: at least half of the pixels above half of the range lie in its upper tenth (the
///     mask's interior), and one of these holds: they are more than four times as many as
///     the lower nonzero pixels; the file has more than 8 values other than 0, and the lower pixels
///     are fewer; the file has more than 64 values. Pixels above half of the range are set.
///   - A label map: it has at most 192 gray values, 256 palette entries or 256 colors. All nonzero
///     pixels are set.
///
/// Throws UserError (kBadData) for other files: a photograph, or a few low values and a high one,
/// which may be noise or labels with a border. `name` identifies the file in messages.
MaskRule find_mask_rule(const PngSamples& samples, const std::string& name);

}  // namespace vlmtrain::image
