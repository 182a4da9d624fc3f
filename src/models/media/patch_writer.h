#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/media/patch_format.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/image/size.h"

namespace vlmtrain::models {

struct MediaPreview;  // media_preview.h

/// Writer of the patches of frames that are added one by one. The result is uint8 [patches, 3,
/// frames_per_patch · patch_size, patch_size] for the grid of PatchFormat::compute_grid(). The
/// frames of a patch are stacked vertically. Patches are ordered by temporal patch, then by token.
/// Bitwise equal to transformers 5.23 with torchvision 0.29. Not thread-safe.
class PatchWriter {
 public:
  /// Creates a writer of `frames` frames that are resized to `size`. REQUIRES: frames ≥ 1.
  PatchWriter(int64_t frames, image::ImageSize size, image::ResampleFilter filter, const PatchFormat& format);

  /// Adds the next frame, uint8 [3, height, width]. The tensor may be reused after the call.
  void add(const at::Tensor& frame);
  /// Returns all patches. Repeats the last frame to fill the last temporal patch. REQUIRES: called
  /// once, after the last add().
  at::Tensor finish();

 private:
  /// Copies a resized frame to its patches.
  void write(const at::Tensor& resized);

  image::ResampleFilter filter_;
  data::PatchGrid grid_;
  int64_t patch_size_, frames_per_patch_, merge_size_;
  at::Tensor patches_;
  at::Tensor last_frame_;  // resized
  int64_t num_written_frames_ = 0;
};

/// Returns the resized frame with index `frame`, uint8 [3, height, width], from the patches of a
/// PatchWriter. `grid` is their grid.
at::Tensor extract_frame(const at::Tensor& patches, const data::PatchGrid& grid, int64_t frame,
                         const PatchFormat& format);

/// Returns previews of the first `frames` frames of the patches of a PatchWriter.
std::vector<MediaPreview> preview_frames(const at::Tensor& patches, const data::PatchGrid& grid, int64_t frames,
                                         const PatchFormat& format);

}  // namespace vlmtrain::models
