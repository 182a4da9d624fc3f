#pragma once

#include <array>
#include <cstdint>
#include <string>

struct nifti_2_header;

namespace vlmtrain::image {

/// The linear part of a scan's affine in mm: column j is a step along the file's axis j, rows are
/// right, anterior, superior. The offset is not needed.
using AffineMatrix = std::array<std::array<double, 3>, 3>;

/// Returns the affine of nibabel's get_best_affine(): sform, else qform, else spacing with x
/// towards the left. Corrects the same fields as nibabel does while loading: invalid codes become
/// 0, a spacing of 0 becomes 1, a negative spacing its magnitude, a qfac other than -1 becomes 1.
/// Throws UserError (kBadData) if numbers are not finite or the matrix is singular.
AffineMatrix compute_best_affine(const nifti_2_header& header, const std::string& name);

/// Returns the spacing in mm along each of the file's axes: the lengths of the columns.
std::array<double, 3> compute_spacing(const AffineMatrix& affine);

/// Returns the maximum distance in voxels by which the end of an axis deviates from a right angle
/// to another axis: 0 for orthogonal axes, about 1e-5 if only the header's roundings are oblique.
double compute_shear_voxels(const AffineMatrix& affine, const std::array<int64_t, 3>& size);

/// Returns whether MONAI's Spacing, which takes the affine of a reoriented scan, places its first
/// sample in the corner. It aligns the centers instead if roundings of the header make the axes
/// oblique by more than 1e-8 voxels.
bool starts_at_corner(const AffineMatrix& reoriented, const std::array<int64_t, 3>& size,
                      const std::array<double, 3>& spacing);

/// Returns the affine with the columns of `file_axis`, negated for flipped axes.
AffineMatrix reorient_affine(const AffineMatrix& affine, const std::array<int, 3>& file_axis,
                             const std::array<bool, 3>& is_flipped);

/// The permutation and flips that reorient a scan to RAS+.
struct AxisDirections {
  std::array<int, 3> file_axis;  ///< the file's axis along right, anterior and superior
  std::array<bool, 3> is_flipped;

  bool operator==(const AxisDirections&) const = default;
};

/// Returns the directions of nibabel's io_orientation(): from the rotation nearest to the affine
/// (its polar factor), strongest axis first.
AxisDirections compute_axis_directions(const AffineMatrix& affine);

/// Returns the directions of the file's axes as in nibabel's aff2axcodes(), such as "LAS".
std::string to_axis_codes(const AxisDirections& directions);
/// REQUIRES: a result of to_axis_codes().
AxisDirections parse_axis_codes(const std::string& codes);

}  // namespace vlmtrain::image
