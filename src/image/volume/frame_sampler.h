#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "image/volume/axis_samples.h"
#include "image/volume/nifti_header.h"
#include "image/volume/volume_stream.h"

namespace vlmtrain::image {

/// The outputs of an axis in the order in which a file that is read from its beginning has their voxels.
class OutputSchedule {
 public:
  OutputSchedule(const AxisSamples& samples, int64_t voxels);

  /// Whether any output is made of the voxel.
  bool is_needed(int64_t voxel) const { return is_needed_[voxel]; }

  /// Calls `visit` with each output whose last voxel this is.
  template <class Use>
  void for_each_completed(int64_t voxel, const Use& visit) const {
    for (int64_t i = output_begin_[voxel]; i < output_begin_[voxel + 1]; ++i) visit(outputs_[i]);
  }

 private:
  std::vector<int64_t> outputs_;
  std::vector<int64_t> output_begin_;
  std::vector<bool> is_needed_;
};

/// Reads frames of a scan from first voxel to last and resamples them (trilinear) as they come: rows along the first
/// axis, these to planes, and these to the volume, so that of the scan itself a block of rows is in memory.
class FrameSampler {
 public:
  /// `samples` are by the file's axes. Both must outlive the sampler.
  FrameSampler(const NiftiHeader& header, const std::array<AxisSamples, 3>& samples);

  /// A plane of the resampled frame, `size` values of the first and second axis, the first one's side by side; `index`
  /// along the third.
  using PlaneCallback = std::function<void(int64_t index, const float* plane, int64_t size)>;

  /// The frame that the stream stands at; each plane is handed out once, in the file's order of them.
  /// A data error where a voxel of it is NaN or infinite, or does not fit fp32.
  void read(VolumeStream& stream, const PlaneCallback& callback);

 private:
  void read_plane(VolumeStream& stream);
  void process_row(int64_t row, const float* voxels);
  void check_finite(const std::string& name) const;

  /// Of a row or plane: the one with that number is in place number % 2.
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
