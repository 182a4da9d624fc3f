#include "vlmtrain/data/drawn_steps.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

namespace {

/// The samples of one step after the other.
class Draws {
 public:
  Draws(const DrawOrder& order, const SampleShapes& shapes) : order_(order), shapes_(shapes), cursor_(order.start()) {
    walks_.reserve(static_cast<size_t>(order.lanes()));
    for (int64_t lane = 0; lane < order.lanes(); ++lane) {
      walks_.emplace_back(order, lane, Place{});
      is_known_.push_back(
          std::ranges::any_of(order.epoch(lane, 0)->samples, [&](int64_t sample) { return shapes.has(sample); }));
    }
  }

  /// By rank.
  std::vector<std::vector<int64_t>> step(int64_t units, int64_t ranks) {
    std::vector<std::vector<int64_t>> parts(static_cast<size_t>(ranks));
    for (int64_t unit = 0; unit < units; ++unit) {
      const auto lane = static_cast<size_t>(order_.chooser().choose(cursor_));
      auto& samples = parts[static_cast<size_t>(unit % ranks)];
      const size_t before = samples.size();
      while (is_known_[lane] && samples.size() == before) {
        std::ranges::copy_if(walks_[lane].next().samples, std::back_inserter(samples),
                             [this](int64_t sample) { return shapes_.has(sample); });
      }
    }
    ++cursor_.batches;
    return parts;
  }

 private:
  const DrawOrder& order_;
  const SampleShapes& shapes_;
  Cursor cursor_;
  std::vector<LaneWalk> walks_;
  std::vector<bool> is_known_;  // of each lane, whether it has a sample of known shape
};

/// As many as its samples of known shape make.
int64_t steps_of_epoch(const DrawOrder& order, const SampleShapes& shapes, int64_t units) {
  int64_t all = 0;
  for (int64_t lane = 0; lane < order.lanes(); ++lane) all += order.epoch(lane, 0)->units();
  const double share = static_cast<double>(shapes.known()) / static_cast<double>(std::max<int64_t>(1, order.samples()));
  return static_cast<int64_t>(share * static_cast<double>(all)) / units;
}

}  // namespace

std::vector<StepParts> drawn_parts(const DrawOrder& order, const SampleShapes& shapes, int64_t units, int64_t count,
                                   int64_t ranks) {
  VLMTRAIN_CHECK(units > 0 && count > 0 && ranks > 0, "{} steps of {} units of {} ranks", count, units, ranks);
  Draws draws(order, shapes);
  const int64_t all = std::max(count, steps_of_epoch(order, shapes, units));
  std::vector<StepParts> steps;
  for (int64_t step = 0, wanted = 0; step < all; ++step) {
    const auto samples = draws.step(units, ranks);
    if (step < wanted * all / count) continue;
    ++wanted;
    if (std::ranges::all_of(samples, &std::vector<int64_t>::empty)) continue;
    auto& drawn = steps.emplace_back();
    for (const auto& part : samples) {
      auto& own = drawn.emplace_back();
      for (const int64_t sample : part) own.push_back(shapes.at(sample));
    }
  }
  return steps;
}

}  // namespace vlmtrain::data
