#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "image/volume/affine.h"
#include "image/volume/volume_stream.h"
#include "image/volume/voxel_values.h"
#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {

/// The validated fields of a NIfTI-1 or NIfTI-2 header. The file is large enough for the voxels
/// that the header promises.
struct NiftiHeader {
  std::array<int64_t, 3> size;  ///< voxels, in file order; the first axis is contiguous
  int64_t num_frames;           ///< length of the time axis; 1 without one
  VoxelDtype type;
  bool is_byte_swapped;                 ///< the file's byte order differs from this machine's
  std::optional<VoxelScaling> scaling;  ///< nothing if stored values are the intensities
  AffineMatrix affine;

  // Sizes in the file.
  int64_t row_bytes() const { return size[0] * get_voxel_bytes(type); }
  int64_t plane_bytes() const { return size[1] * row_bytes(); }
  int64_t frame_bytes() const { return size[2] * plane_bytes(); }
};

/// Reads the header at the start of the stream and advances it to the first voxel. Throws UserError
/// (kBadData) as read_volume_info() does. Source of the formats: nifti1.h (NIfTI-1.1) and nifti2.h
/// of the NIfTI reference library.
NiftiHeader read_nifti_header(VolumeStream& stream);

/// Returns the properties in nibabel's terms.
VolumeInfo make_volume_info(const NiftiHeader& header);

}  // namespace vlmtrain::image
