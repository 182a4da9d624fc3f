#include "evaluation/squared_distances.h"

#include <algorithm>
#include <limits>

namespace vlmtrain::evaluation {
namespace {

/// More than any distance in a picture, its square being far from overflow.
constexpr int64_t kInfiniteDistance = int64_t{1} << 30;

/// Of each pixel the distance to the nearest point in its column, kInfiniteDistance or more where it has none: down and
/// up again.
std::vector<int64_t> compute_column_distances(const at::Tensor& points, const Window& window) {
  const int64_t width = window.width;
  std::vector<int64_t> distances(static_cast<size_t>(window.height * width));
  std::vector<int64_t> last(static_cast<size_t>(width), kInfiniteDistance);
  for (int64_t y = 0; y < window.height; ++y) {
    const uint8_t* row = points.const_data_ptr<uint8_t>() + (window.top + y) * points.size(1) + window.left;
    int64_t* out = &distances[y * width];
    for (int64_t x = 0; x < width; ++x) out[x] = last[x] = row[x] != 0 ? 0 : last[x] + 1;
  }
  std::ranges::fill(last, kInfiniteDistance);
  for (int64_t y = window.height - 1; y >= 0; --y) {
    int64_t* out = &distances[y * width];
    for (int64_t x = 0; x < width; ++x) out[x] = last[x] = std::min(out[x], last[x] + 1);
  }
  return distances;
}

/// A parabola of the lower envelope: its lowest point, and from where on it is below those before it.
struct Parabola {
  int64_t vertex;
  int64_t height;
  double start;
};

/// Replaces the distances of a row, each within its column, by the squares of the distances to the nearest point.
void square_row(int64_t* row, int64_t width, std::vector<Parabola>& envelope) {
  envelope.clear();
  for (int64_t x = 0; x < width; ++x) {
    if (row[x] >= kInfiniteDistance) continue;
    Parabola next{x, row[x] * row[x], -std::numeric_limits<double>::infinity()};
    while (!envelope.empty()) {
      const Parabola& last = envelope.back();
      const int64_t rise = next.height + x * x - last.height - last.vertex * last.vertex;
      next.start = static_cast<double>(rise) / static_cast<double>(2 * (x - last.vertex));
      if (next.start > last.start) break;
      envelope.pop_back();
      next.start = -std::numeric_limits<double>::infinity();
    }
    envelope.push_back(next);
  }
  auto lowest = envelope.cbegin();
  for (int64_t x = 0; x < width; ++x) {
    while (lowest + 1 != envelope.cend() && (lowest + 1)->start < static_cast<double>(x)) ++lowest;
    row[x] = (x - lowest->vertex) * (x - lowest->vertex) + lowest->height;
  }
}

}  // namespace

std::vector<int64_t> compute_squared_distances(const at::Tensor& points, const Window& window) {
  std::vector<int64_t> distances = compute_column_distances(points, window);
  std::vector<Parabola> envelope;
  for (int64_t y = 0; y < window.height; ++y) square_row(&distances[y * window.width], window.width, envelope);
  return distances;
}

}  // namespace vlmtrain::evaluation
