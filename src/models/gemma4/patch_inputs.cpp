#include "models/gemma4/patch_inputs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>

#include <vector>

#include "models/network/layers.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device_copy.h"
#include "vlmtrain/nn/layers/position_embedding.h"

namespace vlmtrain::models::gemma4 {

namespace {

/// Returns PatchInputs::positions on the host: all columns, then all rows.
std::vector<int64_t> list_patch_positions(std::span<const data::PatchGrid> grids, const PatchFormat& format) {
  std::vector<int64_t> columns, rows;
  for (const data::PatchGrid& grid : grids) {
    VLMTRAIN_CHECK(grid.rows % format.merge_size == 0 && grid.columns % format.merge_size == 0,
                   "a grid of {} x {} patches, {} x {} of which form a token", grid.rows, grid.columns,
                   format.merge_size, format.merge_size);
    for (int64_t frame = 0; frame < grid.frames; ++frame) {
      for (int64_t top = 0; top < grid.rows; top += format.merge_size) {
        for (int64_t left = 0; left < grid.columns; left += format.merge_size) {
          for (int64_t i = 0; i < format.patches_per_token(); ++i) {
            columns.push_back(left + i % format.merge_size);
            rows.push_back(top + i / format.merge_size);
          }
        }
      }
    }
  }
  columns.insert(columns.end(), rows.begin(), rows.end());
  return columns;
}

}  // namespace

PatchInputs make_patch_inputs(const image::ByteImages& pixels, std::span<const data::PatchGrid> grids,
                              const PatchFormat& format, const at::Tensor& position_table) {
  const auto host_positions = list_patch_positions(grids, format);
  const int64_t num_patches = std::ssize(host_positions) / kNumPatchAxes;
  VLMTRAIN_CHECK(num_patches == pixels.num_images(), "the grids have {} patches, but there are {} rows of pixels",
                 num_patches, pixels.num_images());
  return {
      .pixels = normalize_images(pixels, position_table.scalar_type()).permute({0, 2, 3, 1}).flatten(1),
      .positions = memory::copy_to_device(host_positions, position_table.device()).view({kNumPatchAxes, num_patches})};
}

at::Tensor sum_position_embeddings(const at::Tensor& table, const at::Tensor& positions, int64_t stride,
                                   int64_t row_offset) {
  const at::Tensor first_rows = stride == 1 ? positions : positions * stride;
  const at::Tensor indices = at::cat({first_rows.narrow(0, 0, 1), first_rows.narrow(0, 1, 1) + row_offset});
  return nn::sum_weighted_rows(table, indices, at::ones(indices.sizes(), indices.options().dtype(at::kFloat)));
}

}  // namespace vlmtrain::models::gemma4
