#include "image/volume/affine.h"

#include <nifti2_io.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "vlmtrain/base/error.h"

namespace vlmtrain::image {

namespace {

/// The highest valid sform and qform code, NIFTI_XFORM_TEMPLATE_OTHER. Debian's nifti1.h does not
/// define it.
constexpr int32_t kMaxTransformCode = 5;

bool is_valid_transform_code(int32_t code) {
  return code > 0 && code <= kMaxTransformCode;
}

/// Corrects a spacing as nibabel does.
double sanitize_spacing(double stored_spacing) {
  return stored_spacing == 0 ? 1 : std::abs(stored_spacing);
}

AffineMatrix read_sform(const nifti_2_header& header) {
  AffineMatrix result;
  std::copy_n(header.srow_x, 3, result[0].begin());
  std::copy_n(header.srow_y, 3, result[1].begin());
  std::copy_n(header.srow_z, 3, result[2].begin());
  return result;
}

/// Returns the rotation of the header's quaternion, scaled by its spacing. Throws UserError
/// (kBadData) if the quaternion is invalid.
AffineMatrix read_qform(const nifti_2_header& header, const std::string& name) {
  const double b = header.quatern_b, c = header.quatern_c, d = header.quatern_d;
  // The fourth component is sqrt(1 - b² - c² - d²). The tolerance is above the roundings of a
  // header, about 1e-7.
  if (!(b * b + c * c + d * d < 1 + 1e-5)) {
    throw data_error(
        "{}: the scan's qform is not a rotation (quaternion {}, {}, {}), so right and left are unknown; write the file "
        "again with a valid one",
        name, b, c, d);
  }
  const nifti_dmat44 matrix =
      nifti_quatern_to_dmat44(b, c, d, 0, 0, 0, sanitize_spacing(header.pixdim[1]), sanitize_spacing(header.pixdim[2]),
                              sanitize_spacing(header.pixdim[3]), header.pixdim[0] == -1 ? -1 : 1);
  AffineMatrix result;
  for (int row = 0; row < 3; ++row) std::copy_n(matrix.m[row], 3, result[row].begin());
  return result;
}

/// Returns nibabel's get_base_affine(): the spacing, with x towards the left.
AffineMatrix make_base_affine(const nifti_2_header& header) {
  AffineMatrix result{};
  for (int axis = 0; axis < 3; ++axis) result[axis][axis] = sanitize_spacing(header.pixdim[axis + 1]);
  result[0][0] = -result[0][0];
  return result;
}

/// Returns the determinant of the affine with normalized columns.
double compute_normalized_determinant(const AffineMatrix& affine, const std::array<double, 3>& spacing) {
  nifti_dmat33 unit_columns;
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 3; ++column) unit_columns.m[row][column] = affine[row][column] / spacing[column];
  }
  return nifti_dmat33_determ(unit_columns);
}

/// Throws UserError (kBadData) if the affine is singular or not finite. `source`: the header's
/// fields that it was read from, for the message.
void check_is_invertible(const AffineMatrix& affine, const char* source, const std::string& name) {
  const std::array<double, 3> spacing = compute_spacing(affine);
  const bool is_usable = std::ranges::all_of(spacing, [](double mm) { return std::isfinite(mm) && mm > 0; });
  // The determinant of normalized columns. 1e-6 corresponds to two axes 0.0001 degrees apart.
  constexpr double kMinDeterminant = 1e-6;
  if (is_usable && std::abs(compute_normalized_determinant(affine, spacing)) > kMinDeterminant) return;
  throw data_error(
      "{}: the scan's {} does not define its axes: it contains NaN or infinity, or two axes coincide; write the file "
      "again with a valid one",
      name, source);
}

/// Letters of directions along and against the axes right, anterior and superior.
constexpr std::string_view kPositiveAxisCodes = "RAS", kNegativeAxisCodes = "LPI";

/// Returns the orthogonal matrix nearest to the affine with normalized columns.
nifti_dmat33 find_nearest_rotation(const AffineMatrix& affine) {
  const std::array<double, 3> spacing = compute_spacing(affine);
  nifti_dmat33 unit_columns;
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 3; ++column) unit_columns.m[row][column] = affine[row][column] / spacing[column];
  }
  return nifti_dmat33_polar(unit_columns);
}

}  // namespace

std::array<double, 3> compute_spacing(const AffineMatrix& affine) {
  std::array<double, 3> result;
  for (int column = 0; column < 3; ++column) {
    double sum_of_squares = 0;
    for (int row = 0; row < 3; ++row) sum_of_squares += affine[row][column] * affine[row][column];
    result[column] = std::sqrt(sum_of_squares);
  }
  return result;
}

double compute_shear_in_voxels(const AffineMatrix& affine, const std::array<int64_t, 3>& size) {
  const std::array<double, 3> spacing = compute_spacing(affine);
  double result = 0;
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) {
      if (a == b) continue;
      double dot_product = 0;
      for (int row = 0; row < 3; ++row) dot_product += affine[row][a] * affine[row][b];
      const double cosine = dot_product / (spacing[a] * spacing[b]);
      const double length = static_cast<double>(size[a] - 1) * spacing[a];
      result = std::max(result, std::abs(cosine) * length / spacing[b]);
    }
  }
  return result;
}

AffineMatrix reorient_affine(const AffineMatrix& affine, const std::array<int, 3>& file_axes,
                             const std::array<bool, 3>& is_flipped) {
  AffineMatrix result;
  for (int row = 0; row < 3; ++row) {
    for (int axis = 0; axis < 3; ++axis) {
      result[row][axis] = is_flipped[axis] ? -affine[row][file_axes[axis]] : affine[row][file_axes[axis]];
    }
  }
  return result;
}

// Source: zoom_affine and compute_shape_offset in monai/data/utils.py. The shear is the
// off-diagonal part of the Cholesky factor of AᵀA. MONAI's offset is the minimum over the scan's
// corners; it is 0 only if no shear moves a corner below the first voxel.
bool is_aligned_to_corner(const AffineMatrix& reoriented, const std::array<int64_t, 3>& size,
                          const std::array<double, 3>& spacing) {
  constexpr double kVoxelTolerance = 1e-8;  // in voxels; absorbs the roundings of the factorization
  AffineMatrix cholesky_factor{};           // lower triangular
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j <= i; ++j) {
      double residual = 0;
      for (int row = 0; row < 3; ++row) residual += reoriented[row][i] * reoriented[row][j];
      for (int k = 0; k < j; ++k) residual -= cholesky_factor[i][k] * cholesky_factor[j][k];
      cholesky_factor[i][j] = i == j ? std::sqrt(residual) : residual / cholesky_factor[j][j];
    }
  }
  for (int axis = 0; axis < 3; ++axis) {
    double min_offset = 0;
    for (int other_axis = axis + 1; other_axis < 3; ++other_axis) {
      min_offset +=
          std::min(cholesky_factor[other_axis][axis] * static_cast<double>(size[other_axis] - 1) / spacing[axis], 0.0);
    }
    if (min_offset < -kVoxelTolerance) return false;
  }
  return true;
}

AffineMatrix compute_best_affine(const nifti_2_header& header, const std::string& name) {
  AffineMatrix result;
  const char* source = nullptr;
  if (is_valid_transform_code(header.sform_code)) {
    result = read_sform(header);
    source = "sform";
  } else if (is_valid_transform_code(header.qform_code)) {
    result = read_qform(header, name);
    source = "qform";
  } else {
    result = make_base_affine(header);
    source = "spacing (pixdim)";
  }
  check_is_invertible(result, source, name);
  return result;
}

AxisDirections compute_axis_directions(const AffineMatrix& affine) {
  nifti_dmat33 rotation = find_nearest_rotation(affine);
  const auto compute_max_square = [rotation](int column) {
    double max_square = 0;
    for (const auto& row : rotation.m) max_square = std::max(max_square, row[column] * row[column]);
    return max_square;
  };
  std::array<int, 3> order{0, 1, 2};
  std::ranges::stable_sort(order, std::greater<>{}, compute_max_square);
  AxisDirections result{};
  for (const int column : order) {
    int dominant_row = 0;
    for (int row = 1; row < 3; ++row) {
      if (std::abs(rotation.m[row][column]) > std::abs(rotation.m[dominant_row][column])) dominant_row = row;
    }
    result.file_axes[dominant_row] = column;
    result.is_flipped[dominant_row] = rotation.m[dominant_row][column] < 0;
    std::ranges::fill(rotation.m[dominant_row], 0.0);  // later axes cannot choose this direction
  }
  return result;
}

std::string to_axis_codes(const AxisDirections& directions) {
  std::string result(3, ' ');
  for (int axis = 0; axis < 3; ++axis) {
    result[directions.file_axes[axis]] = (directions.is_flipped[axis] ? kNegativeAxisCodes : kPositiveAxisCodes)[axis];
  }
  return result;
}

AxisDirections parse_axis_codes(const std::string& codes) {
  AxisDirections result{};
  for (int axis = 0; axis < 3; ++axis) {
    const size_t positive_index = codes.find(kPositiveAxisCodes[axis]);
    result.is_flipped[axis] = positive_index == std::string::npos;
    const size_t index = result.is_flipped[axis] ? codes.find(kNegativeAxisCodes[axis]) : positive_index;
    result.file_axes[axis] = static_cast<int>(index);
  }
  return result;
}

}  // namespace vlmtrain::image
