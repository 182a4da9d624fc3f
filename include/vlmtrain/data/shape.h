#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/data/sample.h"

namespace vlmtrain::data {

/// What of a sample decides how much memory and time it takes: its sizes, not its values.
struct SampleShape {
  int64_t tokens = 0;  ///< image tokens included
  int64_t label_tokens = 0;
  int64_t image_tokens = 0;        ///< tokens that take vision features
  int64_t num_media = 0;           ///< media of all kinds
  int64_t pixel_rows = 0;          ///< of Sample::pixel_values; 0 without media
  PixelRow row{};                  ///< each of them
  std::vector<PatchGrid> grids{};  ///< as Sample::grids
  int64_t num_videos = 0;          ///< of the images
  int64_t video_frames = 0;        ///< of all videos together, as many as are looked at
  int64_t num_volumes = 0;         ///< of the images
  int64_t masks = 0;               ///< to be drawn
  int64_t mask_pictures = 0;       ///< that they lie in
  int64_t mask_side = 0;           ///< of these, in pixels

  /// Of the host's memory, for what is drawn in and what is to be drawn.
  int64_t mask_bytes() const { return (3 * mask_pictures + masks) * mask_side * mask_side; }
  bool operator==(const SampleShape&) const = default;
};

SampleShape get_shape(const Sample& sample);

/// "2 images and 1 video of 16 frames", "2 volumes of 96x96x96"; "no image".
std::string describe_media(const SampleShape& shape);

/// A sample of the same kind with a share of the pixels (0 < share <= 1) and as much text: fewer rows, at least one, or
/// of native resolution less high images. A grid's rows stay a multiple of the patches that one image token's square
/// has on a side.
SampleShape scale_pixels(SampleShape shape, double share);

/// A sample of this shape without values: image tokens first, label tokens last, token ids 0, pixels on the meta
/// device, positions 0.
/// REQUIRES: image_tokens + label_tokens <= tokens, label_tokens < tokens.
Sample make_meta_sample(const SampleShape& shape);

}  // namespace vlmtrain::data
