#include "evaluation/metrics/edit_distance.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace vlmtrain::evaluation {

int64_t compute_edit_distance(std::u32string_view a, std::u32string_view b) {
  const auto prefix_end = std::ranges::mismatch(a, b).in1;
  const auto prefix = static_cast<size_t>(prefix_end - a.begin());
  a.remove_prefix(prefix);
  b.remove_prefix(prefix);
  while (!a.empty() && !b.empty() && a.back() == b.back()) {
    a.remove_suffix(1);
    b.remove_suffix(1);
  }
  // distances[j]: distance between the elements of `a` so far and the first j elements of `b`.
  std::vector<int64_t> distances(b.size() + 1);
  std::iota(distances.begin(), distances.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t diagonal = distances[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t substitution = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = distances[j + 1];
      distances[j + 1] = std::min({substitution, diagonal + 1, distances[j] + 1});
    }
  }
  return distances.back();
}

}  // namespace vlmtrain::evaluation
