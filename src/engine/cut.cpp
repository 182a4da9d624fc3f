#include "vlmtrain/engine/cut.h"

#include <algorithm>
#include <numeric>

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

std::vector<int64_t> ascending(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

}  // namespace

std::span<const int64_t> Cut::micro_batch(int64_t index) const {
  const auto first = std::accumulate(sizes.begin(), sizes.begin() + index, int64_t{0});
  return std::span(order).subspan(static_cast<size_t>(first),
                                  static_cast<size_t>(sizes.at(static_cast<size_t>(index))));
}

Cut cut_in_order(std::vector<int64_t> sizes) {
  auto order = ascending(std::reduce(sizes.begin(), sizes.end()));
  return {.order = std::move(order), .sizes = std::move(sizes)};
}

Cut equal_cut(int64_t samples, int64_t size, const CutRule& rule) {
  VLMTRAIN_CHECK(size > 0 && rule.unit > 0 && samples % rule.unit == 0,
                 "{} samples in micro-batches of {}, units of {}", samples, size, rule.unit);
  VLMTRAIN_CHECK(rule.groups.empty() || std::ssize(rule.groups) == samples, "groups of {} samples for {}",
                 rule.groups.size(), samples);
  const auto group_of = [&rule](int64_t unit) {
    return rule.groups.empty() ? 0 : rule.groups[static_cast<size_t>(unit * rule.unit)];
  };
  auto units = ascending(samples / rule.unit);
  std::ranges::stable_sort(units, {}, group_of);
  const int64_t most = std::max(size / rule.unit, int64_t{1}) * rule.unit;
  Cut cut{.order = {}, .sizes = {}, .unit = rule.unit};
  cut.order.reserve(static_cast<size_t>(samples));
  for (size_t i = 0; i < units.size(); ++i) {
    const bool begins = i == 0 || cut.sizes.back() == most || group_of(units[i]) != group_of(units[i - 1]);
    if (begins) cut.sizes.push_back(0);
    cut.sizes.back() += rule.unit;
    for (int64_t sample = 0; sample < rule.unit; ++sample) cut.order.push_back(units[i] * rule.unit + sample);
  }
  return cut;
}

std::optional<Cut> divided(const Cut& cut, int64_t failed, Division division) {
  if (failed < 0) failed = std::distance(cut.sizes.begin(), std::ranges::max_element(cut.sizes));
  const int64_t failed_size = cut.sizes.at(static_cast<size_t>(failed));
  if (failed_size == cut.unit && division != Division::kSingles) return std::nullopt;
  Cut smaller{.order = cut.order, .sizes = {}, .unit = cut.unit};
  for (int64_t i = 0; i < cut.micro_batches(); ++i) {
    const int64_t size = cut.sizes[static_cast<size_t>(i)];
    if (division == Division::kSingles) {
      smaller.sizes.insert(smaller.sizes.end(), static_cast<size_t>(size / cut.unit), cut.unit);
    } else if (i == failed || (division == Division::kAllAsLarge && size >= failed_size)) {
      const int64_t half = size / cut.unit / 2 * cut.unit;
      smaller.sizes.push_back(size - half);
      smaller.sizes.push_back(half);
    } else {
      smaller.sizes.push_back(size);
    }
  }
  if (smaller == cut) return std::nullopt;
  return smaller;
}

}  // namespace vlmtrain::engine
