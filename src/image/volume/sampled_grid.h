#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "image/volume/affine.h"
#include "image/volume/nifti_header.h"
#include "image/volume/volume_stream.h"
#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {

/// The linear interpolation along one axis: output i is a + second_weights[i] · (b - a), where a
/// and b are the values of the voxels first_voxels[i] and second_voxels[i]. In this form, constant
/// values stay constant to the bit.
struct AxisSamples {
  std::vector<int32_t> first_voxels;   ///< voxel indices along the axis
  std::vector<int32_t> second_voxels;  ///< equal to first_voxels[i] or a neighbor
  std::vector<float> second_weights;   ///< 0 to 1

  /// Returns the number of outputs.
  int64_t size() const { return static_cast<int64_t>(first_voxels.size()); }
};

// `num_voxels` is the length of an axis in the scan, `num_outputs` its length after resampling.

/// Returns `num_outputs` samples of the whole axis, as in torch's interpolate(mode="trilinear",
/// align_corners=False), whose positions are computed in fp32.
AxisSamples make_resize_samples(int64_t num_voxels, int64_t num_outputs);

/// Returns samples at the positions begin, begin + step, …, in voxels, as in MONAI's
/// Spacing(padding_mode="border"): positions outside of the axis are moved to its nearest voxel.
AxisSamples make_spacing_samples(int64_t num_voxels, int64_t num_outputs, double begin, double step);

/// Returns `num_outputs` evenly spaced voxels without interpolation; see
/// make_evenly_spaced_indices().
AxisSamples make_evenly_spaced_samples(int64_t num_voxels, int64_t num_outputs);

/// Returns the samples of outputs begin to begin + count - 1.
AxisSamples slice_samples(const AxisSamples& samples, int64_t begin, int64_t count);

/// Returns samples that give the same outputs if the axis is stored in reverse.
AxisSamples mirror_sample_voxels(AxisSamples samples, int64_t num_voxels);

/// Returns the samples of the outputs in reverse order.
AxisSamples reverse_samples(AxisSamples samples);

/// Returns `count` evenly spaced integers from 0 to range - 1, both included: numpy's linspace,
/// rounded (halves to even). A count of 1 gives 0.
std::vector<int64_t> make_evenly_spaced_indices(int64_t range, int64_t count);

/// The resampling, cropping and padding of a volume. Arrays are by right, anterior and superior.
struct SampledGrid {
  std::array<AxisSamples, 3> samples;
  std::array<int64_t, 3> crop_begin{};    ///< index of the first sample that the result keeps
  std::array<int64_t, 3> cropped_size{};  ///< number of samples that the result keeps
  std::array<int64_t, 3> pad_before{};    ///< number of zeros in the result before the samples

  /// Returns the number of resampled values, before cropping.
  int64_t num_values() const { return samples[0].size() * samples[1].size() * samples[2].size(); }
};

/// The size in voxels and the spacing in mm of a reoriented scan, by right, anterior and superior.
struct RasGeometry {
  std::array<int64_t, 3> size;
  std::array<double, 3> spacing;
};

/// Returns the size and the spacing of the scan after its reorientation.
RasGeometry compute_ras_geometry(const VolumeInfo& info);

/// The maximum number of values after resampling, 2 GiB in fp32. Only a spacing far below the
/// scan's gives more.
inline constexpr int64_t kMaxSampledValues = int64_t{1} << 29;

/// Returns whether the normalization depends on all resampled voxels, including those that are
/// cropped.
bool needs_full_volume(VolumeNormalization normalization);

/// Returns the number of samples along each axis before cropping: integers, as doubles since they
/// have no limit here.
std::array<double, 3> compute_sampled_sizes(const RasGeometry& geometry, const VolumeSettings& settings);

/// Returns the grid of a volume. If the normalization permits, the grid has only the samples that
/// the result keeps. `affine` is that of the file. Throws UserError (kBadData) for more than
/// kMaxSampledValues. `name` identifies the scan in messages.
SampledGrid make_sampled_grid(const VolumeInfo& info, const AffineMatrix& affine, const VolumeSettings& settings,
                              const std::string& name);

/// Returns the grid's samples for each of the file's axes, in the file's directions.
std::array<AxisSamples, 3> order_samples_by_file_axis(const SampledGrid& grid, const VolumeInfo& info);

/// A copy between two memory layouts of three axes. Arrays are by the target's axes, of which the
/// last one is contiguous; strides are in values.
struct StridedCopy {
  std::array<int64_t, 3> shape;
  std::array<int64_t, 3> source_stride;
  std::array<int64_t, 3> target_stride;
};

/// Writes transform(value) of each source value to `target`. Works in tiles, so that each cache
/// line of both sides is used whole.
template <class Value, class Transform>
void copy_strided(const StridedCopy& copy, const float* source, Value* target, const Transform& transform) {
  // Of the first two axes, the one with the smaller stride in the source is the inner one. The
  // third axis is contiguous in the target.
  const int inner_axis = copy.source_stride[0] < copy.source_stride[1] ? 0 : 1;
  const int outer_axis = 1 - inner_axis;
  constexpr int64_t kTileSize = 16;  // floats in a cache line of 64 bytes
  for (int64_t outer_index = 0; outer_index < copy.shape[outer_axis]; ++outer_index) {
    const float* const source_row = source + outer_index * copy.source_stride[outer_axis];
    Value* const target_row = target + outer_index * copy.target_stride[outer_axis];
    for (int64_t inner_begin = 0; inner_begin < copy.shape[inner_axis]; inner_begin += kTileSize) {
      const int64_t inner_end = std::min(inner_begin + kTileSize, copy.shape[inner_axis]);
      for (int64_t begin = 0; begin < copy.shape[2]; begin += kTileSize) {
        const int64_t end = std::min(begin + kTileSize, copy.shape[2]);
        for (int64_t inner_index = inner_begin; inner_index < inner_end; ++inner_index) {
          for (int64_t i = begin; i < end; ++i) {
            target_row[inner_index * copy.target_stride[inner_axis] + i * copy.target_stride[2]] =
                transform(source_row[inner_index * copy.source_stride[inner_axis] + i * copy.source_stride[2]]);
          }
        }
      }
    }
  }
}

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
