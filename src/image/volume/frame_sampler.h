#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "image/volume/nifti_header.h"
#include "image/volume/sampled_grid.h"
#include "image/volume/volume_stream.h"

namespace vlmtrain::image {

/// The outputs of an axis, ordered by the voxels that they need when the file is read forward.
class OutputSchedule {
 public:
  OutputSchedule(const AxisSamples& samples, int64_t voxels);

  /// Returns whether any output depends on the voxel.
  bool is_needed(int64_t voxel) const { return is_needed_[voxel]; }

  /// Calls `visit` with each output whose last voxel is `voxel`.
  template <class Use>
  void for_each_completed(int64_t voxel, const Use& visit) const {
    for (int64_t i = output_begin_[voxel]; i < output_begin_[voxel + 1]; ++i) visit(outputs_[i]);
  }

 private:
  std::vector<int64_t> outputs_;
  std::vector<int64_t> output_begin_;
  std::vector<bool> is_needed_;
};

/// A trilinear resampler of a scan's frames that works while the file is read: it resamples rows
/// along the first axis, blends them to planes, and planes to the volume. Only a block of rows of
/// the scan is in memory.
class FrameSampler {
 public:
  /// `samples`: by the file's axes. Both arguments must outlive the sampler.
  FrameSampler(const NiftiHeader& header, const std::array<AxisSamples, 3>& samples);

  /// Receives a plane of the resampled frame: `size` values of the first and second axis, the first
  /// contiguous; `index` along the third axis.
  using PlaneCallback = std::function<void(int64_t index, const float* plane, int64_t size)>;

  /// Reads the next frame of the stream and calls `callback` once for each plane, in file order.
  /// Throws UserError (kBadData) if a voxel is NaN, infinite or beyond fp32.
  void read(VolumeStream& stream, const PlaneCallback& callback);

 private:
  void read_plane(VolumeStream& stream);
  void process_row(int64_t row, const float* voxels);
  void check_finite(const std::string& name) const;

  /// The last two rows and planes: number i is at index i % 2.
  std::array<std::vector<float>, 2> rows_;
  std::array<std::vector<float>, 2> planes_;
  int64_t plane_ = 0;
  int64_t num_nonfinite_ = 0;

  const NiftiHeader& header_;
  const std::array<AxisSamples, 3>& samples_;
  OutputSchedule row_order_;
  OutputSchedule plane_order_;
  VoxelConverter converter_;
  std::vector<uint8_t> stored_block_;
  std::vector<float> voxel_row_;
  std::vector<float> blended_;
};

}  // namespace vlmtrain::image
