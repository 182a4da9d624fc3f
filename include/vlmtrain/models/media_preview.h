#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>

namespace vlmtrain::models {

/// A picture, or a frame of a video, as the tower gets it: rows of a sample's pixels put together again, to look at. Of
/// a volume the three middle slices (image::render_orthogonal_slices).
struct MediaPreview {
  at::Tensor pixels;        ///< uint8 [3, height, width], before they are normalised
  int64_t media_index = 0;  ///< of the sample, in the order of their marks
  int64_t frame_index = 0;  ///< of a video or a series of volumes, among those that are looked at
  /// Of the tiles that the tower sees one by one, side by side in `pixels`; those of `pixels` where it sees them whole.
  int64_t tile_height = 0;
  int64_t tile_width = 0;
  bool is_overview = false;         ///< the whole picture once more, beside its tiles
  std::array<int64_t, 3> voxels{};  ///< of a volume, towards right, front and top; else 0
  std::string name{};               ///< io::describe_volume() of it

  bool is_volume() const { return voxels[0] > 0; }
};

}  // namespace vlmtrain::models
