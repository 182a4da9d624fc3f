#pragma once

#include <cstdint>

#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/size.h"

namespace vlmtrain::models {

/// The patches of a tower that processes images at native resolution.
struct PatchFormat {
  int64_t patch_size = 1;          ///< side of a patch, in pixels
  int64_t frames_per_patch = 1;    ///< frames that a patch stacks
  int64_t merge_size = 1;          ///< a token covers a square of merge_size² patches
  bool has_position_axes = false;  ///< whether tokens have positions on several axes (M-RoPE)

  int64_t patches_per_token() const { return merge_size * merge_size; }
  /// Returns the type and size of a patch, whose frames are stacked vertically.
  data::PixelRowShape row() const { return {.height = frames_per_patch * patch_size, .width = patch_size}; }

  /// Returns the grid of patches of `frames` frames that were resized to `size`. The number of
  /// temporal patches is rounded up.
  data::PatchGrid compute_grid(int64_t frames, image::ImageSize size) const {
    return {.frames = (frames + frames_per_patch - 1) / frames_per_patch,
            .rows = size.height / patch_size,
            .columns = size.width / patch_size};
  }
  /// Returns the grid of tokens of a grid of patches.
  data::PatchGrid compute_token_grid(const data::PatchGrid& patches) const {
    return {.frames = patches.frames, .rows = patches.rows / merge_size, .columns = patches.columns / merge_size};
  }
  /// Returns the token numbers and the input shape of an image or video with this grid of patches,
  /// without the tokens of markers.
  data::SampleShape make_sample_shape(const data::PatchGrid& grid) const {
    const int64_t tokens = grid.patches() / patches_per_token();
    return {.tokens = tokens,
            .image_tokens = tokens,
            .num_images = 1,
            .pixel_rows = grid.patches(),
            .row = row(),
            .patch_grids = {grid},
            .has_position_axes = has_position_axes};
  }
};

}  // namespace vlmtrain::models
