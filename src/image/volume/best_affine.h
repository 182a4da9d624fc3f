#pragma once

#include <array>
#include <cstdint>
#include <string>

struct nifti_2_header;

namespace vlmtrain::image {

/// What a step along each of the file's axes (column) is towards right, front and top (row), in mm.
using AffineMatrix = std::array<std::array<double, 3>, 3>;

/// The affine that nibabel's get_best_affine() takes: sform, else qform, else spacing with x towards the left. Without
/// the offset, which says where the scan lay in the scanner. Where nibabel mends a field while it loads, so does this:
/// codes that do not exist are 0, a spacing of 0 is 1, of a negative one the amount counts, a qfac other than -1 is 1.
/// A data error where the numbers are not finite, or make no space of three axes.
AffineMatrix compute_best_affine(const nifti_2_header& header, const std::string& name);

/// mm from voxel to voxel along each of the file's axes: the lengths of the columns.
std::array<double, 3> compute_spacing(const AffineMatrix& affine);

/// How far, in voxels, the end of an axis of a scan of that size leans towards another axis: 0 where all are at right
/// angles, some 1e-5 where a header's roundings make them lean.
double compute_shear_voxels(const AffineMatrix& affine, const std::array<int64_t, 3>& size);

/// Whether MONAI's Spacing, which takes the affine of a turned scan, finds its first voxel in a corner of all the
/// others. Not so where a header's roundings make the axes lean by more than 1e-8 voxels: then it puts centre upon
/// centre.
bool starts_at_corner(const AffineMatrix& reoriented, const std::array<int64_t, 3>& size,
                      const std::array<double, 3>& spacing);

/// The affine with the columns of these file axes, each negated where it runs backwards.
AffineMatrix reorient_affine(const AffineMatrix& affine, const std::array<int, 3>& file_axis,
                             const std::array<bool, 3>& is_flipped);

}  // namespace vlmtrain::image
