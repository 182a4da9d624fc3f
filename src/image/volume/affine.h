#pragma once

#include <array>
#include <cstdint>
#include <string>

struct nifti_2_header;

namespace vlmtrain::image {

/// The linear part of a scan's affine in mm, [row][column]: column j is a step of one voxel along
/// the file's axis j; rows are right, anterior, superior. The offset is not needed.
using AffineMatrix = std::array<std::array<double, 3>, 3>;

/// Returns the affine of nibabel's get_best_affine(): sform, else qform, else spacing with x
/// towards the left. Corrects the same fields as nibabel does while loading: an invalid code
/// becomes 0, a spacing of 0 becomes 1, a negative spacing becomes positive, and a qfac other than
/// -1 becomes 1. Throws UserError (kBadData) if a number is not finite or the matrix is singular.
/// `name` identifies the scan in messages.
AffineMatrix compute_best_affine(const nifti_2_header& header, const std::string& name);

/// Returns the spacing in mm along each of the file's axes: the lengths of the columns.
std::array<double, 3> compute_spacing(const AffineMatrix& affine);

/// Returns the maximum distance in voxels by which the end of an axis deviates from the
/// perpendicular of another axis: 0 for orthogonal axes, about 1e-5 if only the header's roundings
/// make them oblique. `size`: voxels in file order.
double compute_shear_in_voxels(const AffineMatrix& affine, const std::array<int64_t, 3>& size);

/// Returns whether MONAI's Spacing, given the affine of a reoriented scan, places its first sample
/// at the scan's first voxel. It aligns the centers instead if the axes are oblique by more than
/// 1e-8 voxels, for example by roundings of the header. `size` is in voxels and `spacing` the
/// requested one in mm, both by right, anterior and superior.
bool is_aligned_to_corner(const AffineMatrix& reoriented, const std::array<int64_t, 3>& size,
                          const std::array<double, 3>& spacing);

/// Returns the affine of a reoriented scan: column j is column file_axes[j], negated if
/// is_flipped[j]. Both arrays are members of AxisDirections.
AffineMatrix reorient_affine(const AffineMatrix& affine, const std::array<int, 3>& file_axes,
                             const std::array<bool, 3>& is_flipped);

/// The permutation and flips that reorient a scan to RAS+.
struct AxisDirections {
  std::array<int, 3> file_axes;    ///< the file's axes that run along right, anterior and superior
  std::array<bool, 3> is_flipped;  ///< whether they run in the opposite directions

  bool operator==(const AxisDirections&) const = default;
};

/// Returns the directions of nibabel's io_orientation(). They follow from the rotation nearest to
/// the affine (its polar factor); the file's axes with the largest components are assigned first.
AxisDirections compute_axis_directions(const AffineMatrix& affine);

/// Returns the directions of the file's axes as in nibabel's aff2axcodes(), such as "LAS".
std::string to_axis_codes(const AxisDirections& directions);

/// Returns the directions of axis codes. REQUIRES: `codes` is a result of to_axis_codes().
AxisDirections parse_axis_codes(const std::string& codes);

}  // namespace vlmtrain::image
