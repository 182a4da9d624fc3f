#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "image/volume/nifti_header.h"
#include "image/volume/sampled_grid.h"
#include "image/volume/volume_stream.h"

namespace vlmtrain::image {

/// The outputs of an axis, ordered by the last voxel that they need, for a file that is read
/// forward.
class OutputSchedule {
 public:
  /// `voxels`: the number of voxels along the axis.
  OutputSchedule(const AxisSamples& samples, int64_t voxels);

  /// Returns whether any output depends on the voxel.
  bool is_needed(int64_t voxel) const { return is_voxel_needed_[voxel]; }

  /// Calls `visit` with the index of each output whose last needed voxel is `voxel`.
  template <class Visit>
  void for_each_completed_output(int64_t voxel, const Visit& visit) const {
    for (int64_t i = output_offsets_[voxel]; i < output_offsets_[voxel + 1]; ++i) visit(sorted_output_indices_[i]);
  }

 private:
  std::vector<int64_t> sorted_output_indices_;  // sorted by their last voxel
  std::vector<int64_t> output_offsets_;         // [voxels + 1], the first index in sorted_output_indices_ of each voxel
  std::vector<bool> is_voxel_needed_;
};

/// A trilinear resampler that works while a scan's frames are read. It resamples each row along the
/// first axis, blends two rows to a row of a resampled plane, and two planes to a plane of the
/// volume. Only a block of the scan's rows, two rows and two planes are in memory.
class FrameSampler {
 public:
  /// `samples`: for each of the file's axes. Both arguments must outlive the object.
  FrameSampler(const NiftiHeader& header, const std::array<AxisSamples, 3>& samples);

  /// A function that receives plane `index` along the third axis of the resampled frame: `size`
  /// values, contiguous along the first axis, then the second. `plane` is valid until the function
  /// returns.
  using PlaneCallback = std::function<void(int64_t index, const float* plane, int64_t size)>;

  /// Reads the next frame of the stream and calls `callback` once for each resampled plane, in the
  /// order in which they are completed. Throws UserError (kBadData) if a voxel is NaN, infinite or
  /// beyond fp32, after all planes. May be called again for the following frames.
  void read(VolumeStream& stream, const PlaneCallback& callback);

 private:
  /// Reads plane number plane_index_ and resamples it to resampled_planes_.
  void read_plane(VolumeStream& stream);
  /// Resamples a row to resampled_rows_, and blends the rows of the plane that it completes.
  void resample_row(int64_t row, const float* voxels);
  /// Throws UserError (kBadData) if num_nonfinite_voxels_ is not 0.
  void check_finite(const std::string& name) const;

  // The last two rows and planes of the scan, resampled: number i is at index i % 2.
  std::array<std::vector<float>, 2> resampled_rows_;
  std::array<std::vector<float>, 2> resampled_planes_;
  int64_t plane_index_ = 0;           // index along the third axis
  int64_t num_nonfinite_voxels_ = 0;  // voxels of the frame that are NaN or infinite

  const NiftiHeader& header_;
  const std::array<AxisSamples, 3>& axis_samples_;
  OutputSchedule row_schedule_;
  OutputSchedule plane_schedule_;
  VoxelConverter voxel_converter_;
  std::vector<uint8_t> stored_rows_;  // rows as in the file
  std::vector<float> voxel_row_;      // one row of the scan
  std::vector<float> output_plane_;   // one plane of the result
};

}  // namespace vlmtrain::image
