#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/models/box_format.h"

namespace vlmtrain::models {

/// An image, or a frame of a video, reassembled from the pixels of a sample, that is, from the
/// input of the vision tower. For a volume, the three middle slices
/// (image::render_orthogonal_slices()).
struct MediaPreview {
  at::Tensor pixels;        ///< uint8 [3, height, width], before normalization
  int64_t media_index = 0;  ///< index in the sample, in the order of its media placeholders
  int64_t frame_index = 0;  ///< index among the sampled frames of a video or volumes of a series
  /// Size of the tiles in `pixels` that the tower processes separately; the size of `pixels` if
  /// there is one tile.
  int64_t tile_height = 0;
  int64_t tile_width = 0;
  bool is_overview = false;              ///< whether it is the downscaled full image that accompanies the tiles
  bool is_crop = false;                  ///< whether it shows a part of the image that another preview shows whole
  std::array<int64_t, 3> volume_size{};  ///< size of a volume towards right, front and top; 0 for other media
  std::string name{};                    ///< io::describe_volume() of a volume
  std::vector<image::Box> boxes{};       ///< boxes and points of the record, in pixels of `pixels`

  bool is_volume() const { return volume_size[0] > 0; }
};

}  // namespace vlmtrain::models
