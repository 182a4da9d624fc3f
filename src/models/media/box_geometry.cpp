#include "models/media/box_geometry.h"

namespace vlmtrain::models {

bool is_inside(const image::Box& box, image::ImageSize size, double tolerance) {
  const auto width = static_cast<double>(size.width), height = static_cast<double>(size.height);
  return box.top_left.x >= -tolerance && box.top_left.y >= -tolerance && box.bottom_right.x <= width + tolerance &&
         box.bottom_right.y <= height + tolerance;
}

image::Box clip(const image::Box& box, image::ImageSize size) {
  const auto width = static_cast<double>(size.width), height = static_cast<double>(size.height);
  const auto clip_point = [&](image::Point point) {
    return image::Point{.x = std::clamp(point.x, 0.0, width), .y = std::clamp(point.y, 0.0, height)};
  };
  return {.top_left = clip_point(box.top_left), .bottom_right = clip_point(box.bottom_right)};
}

bool is_visible(const image::Box& box, image::ImageSize size) {
  if (is_inside(box, size, 0)) return true;
  const image::Box visible = clip(box, size);
  return visible.bottom_right.x - visible.top_left.x >= 1 && visible.bottom_right.y - visible.top_left.y >= 1;
}

image::Box convert_to_pixels(const io::ObjectMark& object, image::ImageSize size) {
  const auto width = static_cast<double>(size.width), height = static_cast<double>(size.height);
  double scale_x = 1, scale_y = 1;
  if (object.unit == io::CoordinateUnit::kNormalized1) {
    scale_x = width;
    scale_y = height;
  } else if (object.unit == io::CoordinateUnit::kNormalized1000) {
    scale_x = width / 1000;
    scale_y = height / 1000;
  }
  const std::vector<double>& values = object.coordinates;
  const image::Point first{.x = values[0] * scale_x, .y = values[1] * scale_y};
  if (values.size() == 2) return {.top_left = first, .bottom_right = first};
  return {.top_left = first, .bottom_right = {.x = values[2] * scale_x, .y = values[3] * scale_y}};
}

}  // namespace vlmtrain::models
