#pragma once

#include <string>
#include <vector>

#include "vlmtrain/models/box_format.h"

namespace vlmtrain::models {

/// Returns the text of a coordinate, a position of 0 to `length` pixels. `length`: the width of the
/// image for x, its height for y.
std::string format_coordinate(double position, double length, CoordinateNotation notation);

/// Returns the value that stands for a position at the right or lower edge, `length` pixels from the
/// other edge.
double get_full_value(double length, CoordinateNotation notation);

/// Returns the text of a box with the numbers x1, y1, x2, y2, or of a point with the numbers x, y.
std::string fill_box_format(const BoxFormat& format, const std::vector<std::string>& numbers);

}  // namespace vlmtrain::models
