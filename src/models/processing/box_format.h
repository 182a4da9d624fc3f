#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "vlmtrain/image/points.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"
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

/// Returns the smallest box around the positions of a box's corners under `map_point`.
template <class MapPoint>
image::Box map_corners(const image::Box& box, const MapPoint& map_point) {
  const auto [x1, y1] = box.top_left;
  const auto [x2, y2] = box.bottom_right;
  const std::array<image::Point, 4> corners{map_point(image::Point{x1, y1}), map_point(image::Point{x2, y1}),
                                            map_point(image::Point{x1, y2}), map_point(image::Point{x2, y2})};
  const auto [left, right] = std::ranges::minmax(corners, {}, &image::Point::x);
  const auto [top, bottom] = std::ranges::minmax(corners, {}, &image::Point::y);
  return {.top_left = {.x = left.x, .y = top.y}, .bottom_right = {.x = right.x, .y = bottom.y}};
}

/// Returns whether a box is in an image of `size`, up to `tolerance` pixels.
bool is_inside(const image::Box& box, image::ImageSize size, double tolerance);

/// Returns whether an image of `size` contains a box or a point, or a part of the box of at least one
/// pixel in both directions.
bool is_visible(const image::Box& box, image::ImageSize size);

/// Returns the part of a box in an image of `size`.
image::Box clip(const image::Box& box, image::ImageSize size);

/// Returns the box or point of `object` in pixels of an image of `size`. REQUIRES: it is no name.
image::Box convert_to_pixels(const io::ObjectMark& object, image::ImageSize size);

}  // namespace vlmtrain::models
