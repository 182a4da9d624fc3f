#include "models/media/patch_writer.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/models/media_preview.h"

namespace vlmtrain::models {

PatchWriter::PatchWriter(int64_t frames, image::ImageSize size, image::ResampleFilter filter, const PatchFormat& format)
    : filter_(filter),
      grid_(format.compute_grid(frames, size)),
      patch_size_(format.patch_size),
      frames_per_patch_(format.frames_per_patch),
      merge_size_(format.merge_size),
      patches_(at::empty({grid_.patches(), 3, frames_per_patch_ * patch_size_, patch_size_}, at::kByte)) {}

void PatchWriter::add(const at::Tensor& frame) {
  last_frame_ = image::resize_image(frame, grid_.rows * patch_size_, grid_.columns * patch_size_, filter_);
  write(last_frame_);
}

at::Tensor PatchWriter::finish() {
  while (num_written_frames_ < grid_.frames * frames_per_patch_) write(last_frame_);
  return std::move(patches_);
}

void PatchWriter::write(const at::Tensor& resized) {
  VLMTRAIN_CHECK(num_written_frames_ < grid_.frames * frames_per_patch_, "more frames than {} patches of {}",
                 grid_.frames, frames_per_patch_);
  const int64_t channel_bytes = frames_per_patch_ * patch_size_ * patch_size_, patch_bytes = 3 * channel_bytes;
  const int64_t merged_columns = grid_.columns / merge_size_;  // squares of merge_size² patches per row
  // First byte of the frame within the first of its patches.
  uint8_t* const frame = patches_.mutable_data_ptr<uint8_t>() +
                         num_written_frames_ / frames_per_patch_ * grid_.patches_per_frame() * patch_bytes +
                         num_written_frames_ % frames_per_patch_ * patch_size_ * patch_size_;
  const auto* source_row = resized.const_data_ptr<uint8_t>();
  for (int64_t channel = 0; channel < 3; ++channel) {
    for (int64_t row = 0; row < grid_.rows; ++row) {
      // Index of the row's first patch: the patches of a token are adjacent, so a row of tokens has
      // merge_size² · merged_columns patches and a patch row within it starts at a multiple of
      // merge_size.
      const int64_t first = (row / merge_size_ * merged_columns * merge_size_ + row % merge_size_) * merge_size_;
      for (int64_t y = 0; y < patch_size_; ++y) {
        uint8_t* const target_row = frame + channel * channel_bytes + y * patch_size_;
        for (int64_t column = 0; column < grid_.columns; ++column, source_row += patch_size_) {
          const int64_t patch = first + column / merge_size_ * merge_size_ * merge_size_ + column % merge_size_;
          std::memcpy(target_row + patch * patch_bytes, source_row, patch_size_);
        }
      }
    }
  }
  ++num_written_frames_;
}

at::Tensor extract_frame(const at::Tensor& patches, const data::PatchGrid& grid, int64_t frame,
                         const PatchFormat& format) {
  const int64_t depth = format.frames_per_patch, merge = format.merge_size, side = format.patch_size;
  // [token row, token column, y, x, channel, frame, row, column] → [channel, token row, y, row,
  // token column, x, column].
  return patches.narrow(0, frame / depth * grid.patches_per_frame(), grid.patches_per_frame())
      .view({grid.rows / merge, grid.columns / merge, merge, merge, 3, depth, side, side})
      .select(5, frame % depth)
      .permute({4, 0, 2, 5, 1, 3, 6})
      .reshape({3, grid.rows * side, grid.columns * side});
}

std::vector<MediaPreview> preview_frames(const at::Tensor& patches, const data::PatchGrid& grid, int64_t frames,
                                         const PatchFormat& format) {
  std::vector<MediaPreview> previews;
  previews.reserve(static_cast<size_t>(frames));
  for (int64_t frame = 0; frame < frames; ++frame) {
    at::Tensor pixels = extract_frame(patches, grid, frame, format);
    const int64_t height = pixels.size(1), width = pixels.size(2);
    previews.push_back({.pixels = std::move(pixels), .frame_index = frame, .tile_height = height, .tile_width = width});
  }
  return previews;
}

}  // namespace vlmtrain::models
