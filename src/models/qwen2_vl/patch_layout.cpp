#include "models/qwen2_vl/patch_layout.h"

#include <algorithm>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

/// Visits the tokens of one frame in the tower's order.
class FrameTraversal {
 public:
  FrameTraversal(PatchLayout& layout, const data::PatchGrid& grid, const VisionConfig& config)
      : layout_(layout),
        config_(config),
        rows_(grid.rows / config.merge_size),
        columns_(grid.columns / config.merge_size) {}

  void add_row_major() {
    for (int64_t row = 0; row < rows_; ++row) add_row_segment(row, 0, columns_);
  }

  void add_windows(int64_t first_token) {
    const int64_t side = *config_.window_tokens;
    for (int64_t top = 0; top < rows_; top += side) {
      for (int64_t left = 0; left < columns_; left += side) {
        const int64_t height = std::min(side, rows_ - top), width = std::min(side, columns_ - left);
        for (int64_t row = top; row < top + height; ++row) {
          for (int64_t column = left; column < left + width; ++column) {
            layout_.token_order.push_back(first_token + row * columns_ + column);
          }
          add_row_segment(row, left, width);
        }
        layout_.window_patches.push_back(height * width * config_.patches_per_token());
      }
    }
  }

  int64_t tokens() const { return rows_ * columns_; }

 private:
  /// Positions of the patches of `count` tokens in a row.
  void add_row_segment(int64_t row, int64_t first_column, int64_t count) {
    const int64_t merge = config_.merge_size;
    for (int64_t column = first_column; column < first_column + count; ++column) {
      for (int64_t y = 0; y < merge; ++y) {
        for (int64_t x = 0; x < merge; ++x) {
          layout_.positions.push_back(row * merge + y);
          layout_.positions.push_back(column * merge + x);
        }
      }
    }
  }

  PatchLayout& layout_;
  const VisionConfig& config_;
  int64_t rows_, columns_;
};

/// [row, column, row, column …] → all rows, then all columns.
std::vector<int64_t> split_axes(const std::vector<int64_t>& pairs) {
  const size_t count = pairs.size() / 2;
  std::vector<int64_t> axes(pairs.size());
  for (size_t i = 0; i < count; ++i) {
    axes[i] = pairs[2 * i];
    axes[count + i] = pairs[2 * i + 1];
  }
  return axes;
}

}  // namespace

PatchLayout PatchLayout::make(std::span<const data::PatchGrid> grids, const VisionConfig& config) {
  PatchLayout layout;
  int64_t first_token = 0;
  for (const data::PatchGrid& grid : grids) {
    VLMTRAIN_CHECK(grid.rows % config.merge_size == 0 && grid.columns % config.merge_size == 0,
                   "a grid of {} x {} patches, of which {} x {} make a token", grid.rows, grid.columns,
                   config.merge_size, config.merge_size);
    FrameTraversal frame(layout, grid, config);
    for (int64_t i = 0; i < grid.frames; ++i) {
      config.window_tokens ? frame.add_windows(first_token) : frame.add_row_major();
      layout.frame_patches.push_back(grid.patches_per_frame());
      first_token += frame.tokens();
    }
  }
  layout.positions = split_axes(layout.positions);
  layout.inverse_token_order.resize(layout.token_order.size());
  for (size_t position = 0; position < layout.token_order.size(); ++position) {
    const int64_t token = layout.token_order[position];
    layout.inverse_token_order[static_cast<size_t>(token)] = static_cast<int64_t>(position);
    for (int64_t i = 0; i < config.patches_per_token(); ++i) {
      layout.patch_order.push_back(token * config.patches_per_token() + i);
    }
  }
  return layout;
}

}  // namespace vlmtrain::models::qwen2_vl
