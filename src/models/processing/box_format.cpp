#include "models/processing/box_format.h"

#include <fmt/args.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

BoxFormat select_box_format(const BoxFormat& family, data::BoxOutput output) {
  using Output = data::BoxOutput;
  if (output == Output::kUnchanged && family.notation == CoordinateNotation::kLocationTokens) {
    BoxFormat plain;
    plain.name = family.name;
    return plain;
  }
  if (output == Output::kModel || output == Output::kUnchanged) return family;
  const CoordinateNotation notation = output == Output::kAbsolute         ? CoordinateNotation::kAbsolute
                                      : output == Output::kNormalized1    ? CoordinateNotation::kNormalized1
                                      : output == Output::kNormalized1000 ? CoordinateNotation::kNormalized1000
                                                                          : CoordinateNotation::kLocationTokens;
  if (notation == family.notation) return family;
  BoxFormat format;
  format.notation = notation;
  format.name = family.name;
  if (notation == CoordinateNotation::kLocationTokens) {
    format.box = "{y1}{x1}{y2}{x2}";
    format.point = "{y1}{x1}";
  }
  return format;
}

std::string format_coordinate(double position, double length, CoordinateNotation notation) {
  constexpr double kNumLocations = 1024;  // <loc0000> to <loc1023>
  switch (notation) {
    case CoordinateNotation::kAbsolute:
      return fmt::format("{}", std::llround(position));
    case CoordinateNotation::kNormalized1:
      return fmt::format("{:.2f}", position / length);
    case CoordinateNotation::kNormalized1000:
      return fmt::format("{}", std::llround(position / length * 1000));
    case CoordinateNotation::kLocationTokens:
      return fmt::format("<loc{:04}>",
                         static_cast<int>(std::min(position / length * kNumLocations, kNumLocations - 1)));
  }
  throw InternalError("unknown notation of coordinates");
}

double get_full_value(double length, CoordinateNotation notation) {
  switch (notation) {
    case CoordinateNotation::kAbsolute:
      return length;
    case CoordinateNotation::kNormalized1:
      return 1;
    case CoordinateNotation::kNormalized1000:
      return 1000;
    case CoordinateNotation::kLocationTokens:
      return 1024;
  }
  throw InternalError("unknown notation of coordinates");
}

std::string fill_box_format(const BoxFormat& format, const std::vector<std::string>& numbers) {
  constexpr std::array kNames{"x1", "y1", "x2", "y2"};
  fmt::dynamic_format_arg_store<fmt::format_context> arguments;
  for (size_t i = 0; i < numbers.size(); ++i) arguments.push_back(fmt::arg(kNames[i], numbers[i]));
  return fmt::vformat(numbers.size() == 2 ? format.point : format.box, arguments);
}

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
