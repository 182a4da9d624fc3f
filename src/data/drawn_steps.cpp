#include "vlmtrain/data/drawn_steps.h"

#include <algorithm>
#include <iterator>

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

  std::vector<int64_t> step(int64_t units) {
    std::vector<int64_t> samples;
    for (int64_t unit = 0; unit < units; ++unit) {
      const auto lane = static_cast<size_t>(order_.chooser().choose(cursor_));
      const size_t before = samples.size();
      while (is_known_[lane] && samples.size() == before) {
        std::ranges::copy_if(walks_[lane].next().samples, std::back_inserter(samples),
                             [this](int64_t sample) { return shapes_.has(sample); });
      }
    }
    ++cursor_.batches;
    return samples;
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

std::vector<std::vector<SampleShape>> drawn_steps(const DrawOrder& order, const SampleShapes& shapes, int64_t units,
                                                  int64_t count) {
  VLMTRAIN_CHECK(units > 0 && count > 0, "{} steps of {} units", count, units);
  Draws draws(order, shapes);
  const int64_t all = std::max(count, steps_of_epoch(order, shapes, units));
  std::vector<std::vector<SampleShape>> steps;
  for (int64_t step = 0, wanted = 0; step < all; ++step) {
    const auto samples = draws.step(units);
    if (step < wanted * all / count) continue;
    ++wanted;
    if (samples.empty()) continue;
    auto& drawn = steps.emplace_back();
    for (const int64_t sample : samples) drawn.push_back(shapes.at(sample));
  }
  return steps;
}

}  // namespace vlmtrain::data
