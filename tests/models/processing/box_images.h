#pragma once

#include <ATen/ops/max.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/points.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::models {

/// Returns a black image with a white rectangle, uint8 [3, height, width]. The corners of `box` are
/// integers.
inline at::Tensor draw_rectangle(image::ImageSize size, const image::Box& box) {
  at::Tensor image = at::zeros({3, size.height, size.width}, at::kByte);
  const auto left = static_cast<int64_t>(box.top_left.x), top = static_cast<int64_t>(box.top_left.y);
  image.narrow(1, top, static_cast<int64_t>(box.bottom_right.y) - top)
      .narrow(2, left, static_cast<int64_t>(box.bottom_right.x) - left)
      .fill_(255);
  return image;
}

/// Returns the positions at which `profile`, the values of successive pixels, crosses `threshold` for
/// the first and for the last time, interpolated between the centers of pixels.
inline std::pair<double, double> find_edges(const at::Tensor& profile, double threshold) {
  const at::Tensor values = profile.to(at::kDouble).contiguous();
  const double* const value = values.const_data_ptr<double>();
  const int64_t count = values.numel();
  int64_t first = 0, last = count - 1;
  while (first < count && value[first] < threshold) ++first;
  while (last >= 0 && value[last] < threshold) --last;
  const auto interpolate = [&](int64_t outside, int64_t inside) {
    const double share = (threshold - value[outside]) / (value[inside] - value[outside]);
    return static_cast<double>(outside) + 0.5 + share * static_cast<double>(inside - outside);
  };
  return {first == 0 ? 0.0 : interpolate(first - 1, first),
          last == count - 1 ? static_cast<double>(count) : interpolate(last + 1, last)};
}

/// Returns the smallest box around the pixels of uint8 [3, height, width] above `threshold`, half of
/// white.
inline image::Box find_rectangle(const at::Tensor& pixels, double threshold = 127.5) {
  const at::Tensor gray = pixels.select(0, 0);
  const auto [left, right] = find_edges(std::get<0>(at::max(gray, 0)), threshold);
  const auto [top, bottom] = find_edges(std::get<0>(at::max(gray, 1)), threshold);
  return {.top_left = {.x = left, .y = top}, .bottom_right = {.x = right, .y = bottom}};
}

/// Returns the largest distance between the edges of two boxes.
inline double compute_edge_distance(const image::Box& a, const image::Box& b) {
  return std::max({std::abs(a.top_left.x - b.top_left.x), std::abs(a.top_left.y - b.top_left.y),
                   std::abs(a.bottom_right.x - b.bottom_right.x), std::abs(a.bottom_right.y - b.bottom_right.y)});
}

/// Returns a record whose answer is `answer`, with the mark <bbox> for `coordinates`.
inline io::Record make_box_record(std::string image_bytes, std::vector<double> coordinates,
                                  std::string answer = "<bbox>") {
  io::Record record;
  record.id = "boxes";
  io::MediaRef image("image.png");
  image.bytes = std::make_shared<const std::string>(std::move(image_bytes));
  record.images = {std::move(image)};
  const size_t begin = answer.find("<bbox>");
  record.turns = {{io::Role::kUser, "<image>\nWhere?"}, {io::Role::kAssistant, std::move(answer)}};
  record.objects = {{.turn_index = 1, .range = {begin, begin + 6}, .coordinates = std::move(coordinates)}};
  return record;
}

}  // namespace vlmtrain::models
