#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "models/media/patch_format.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/byte_images.h"

namespace vlmtrain::models::gemma4 {

/// Axes of the position of a patch: column and row.
inline constexpr int64_t kNumPatchAxes = 2;

/// The patches of images.
struct PatchInputs {
  at::Tensor pixels;     ///< [patches, side · side · 3], normalized, in the order line, column, channel
  at::Tensor positions;  ///< int64 [2, patches]: column and row of each patch in its image
};

/// Returns the patches [patches, 3, side, side] of `grids` for a model with this position table.
/// Patches are ordered as by PatchWriter.
PatchInputs make_patch_inputs(const image::ByteImages& pixels, std::span<const data::PatchGrid> grids,
                              const PatchFormat& format, const at::Tensor& position_table);

/// Returns the sum of the embeddings of column and row, [patches, features]. Column c is in row
/// c · `stride` of table [rows, features], row r in row r · `stride` + `row_offset`.
at::Tensor sum_position_embeddings(const at::Tensor& table, const at::Tensor& positions, int64_t stride,
                                   int64_t row_offset);

}  // namespace vlmtrain::models::gemma4
