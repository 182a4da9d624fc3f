#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "vlmtrain/data/sample_shapes.h"

namespace vlmtrain::data {

// What may make a sample the one that needs most memory; what stands behind decides between equal ones.

inline std::tuple<int64_t, int64_t, int64_t> token_sort_key(const SampleShape& shape) {
  return {shape.tokens, shape.pixel_rows, shape.label_tokens};
}

inline std::tuple<int64_t, int64_t, int64_t> pixel_sort_key(const SampleShape& shape) {
  return {shape.pixel_rows * shape.row.bytes(), shape.tokens, shape.label_tokens};
}

inline std::tuple<int64_t, int64_t, int64_t> label_sort_key(const SampleShape& shape) {
  return {shape.label_tokens, shape.tokens, shape.pixel_rows};
}

inline std::tuple<int64_t, int64_t, int64_t> mask_sort_key(const SampleShape& shape) {
  return {shape.masks, shape.mask_pictures, shape.tokens};
}

/// The `count` samples of known shape that have the largest `size(shape)`, or all where there are fewer; the largest
/// first, equal ones in the order of the data set.
template <class Size>
std::vector<int64_t> find_largest(const SampleShapes& shapes, const Size& size, int64_t count) {
  using Ranked = std::pair<decltype(size(std::declval<SampleShape>())), int64_t>;
  const auto comes_first = [](const Ranked& left, const Ranked& right) {
    return left.first != right.first ? left.first > right.first : left.second < right.second;
  };
  std::vector<Ranked> largest;  // a heap; at its front is what comes last
  for (int64_t index = 0; index < shapes.size() && count > 0; ++index) {
    if (!shapes.has(index)) continue;
    Ranked candidate{size(shapes.at(index)), index};
    if (std::ssize(largest) == count) {
      if (!comes_first(candidate, largest.front())) continue;
      std::ranges::pop_heap(largest, comes_first);
      largest.pop_back();
    }
    largest.push_back(std::move(candidate));
    std::ranges::push_heap(largest, comes_first);
  }
  std::ranges::sort_heap(largest, comes_first);
  std::vector<int64_t> indices;
  indices.reserve(largest.size());
  for (const auto& ranked : largest) indices.push_back(ranked.second);
  return indices;
}

}  // namespace vlmtrain::data
