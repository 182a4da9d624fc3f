#pragma once

#include <array>
#include <string>

#include "image/volume/best_affine.h"

namespace vlmtrain::image {

/// Which of the file's axes runs along each of right, front and top, and whether it does so backwards.
struct AxisDirections {
  std::array<int, 3> file_axis;  ///< by right, front, top
  std::array<bool, 3> is_flipped;

  bool operator==(const AxisDirections&) const = default;
};

/// Those of nibabel's io_orientation(): by the rotation next to the affine (its polar factor), strongest axis first.
AxisDirections compute_axis_directions(const AffineMatrix& affine);

/// Where the file's axes point, as nibabel's aff2axcodes() says it ("LAS"), and back.
std::string to_axis_codes(const AxisDirections& directions);
AxisDirections parse_axis_codes(const std::string& codes);

}  // namespace vlmtrain::image
