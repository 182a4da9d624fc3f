#include "vlmtrain/data/drawn_steps.h"

#include <algorithm>

#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

namespace {

class Draws {
 public:
  Draws(const DrawOrder& order, const Outlines& outlines) : order_(order), outlines_(outlines), cursor_(order.start()) {
    walks_.reserve(static_cast<size_t>(order.lanes()));
    for (int64_t lane = 0; lane < order.lanes(); ++lane) {
      walks_.emplace_back(order, lane, Place{});
      is_known_.push_back(std::ranges::any_of(order.epoch(lane, 0)->samples,
                                              [this](int64_t sample) { return shape_of(sample).has_value(); }));
    }
  }

  std::vector<SampleShape> step(int64_t units) {
    std::vector<SampleShape> shapes;
    for (int64_t unit = 0; unit < units; ++unit) {
      const auto lane = static_cast<size_t>(order_.chooser().choose(cursor_));
      const size_t before = shapes.size();
      while (is_known_[lane] && shapes.size() == before) add(walks_[lane].next().samples, shapes);
    }
    ++cursor_.batches;
    return shapes;
  }

 private:
  const std::optional<SampleShape>& shape_of(int64_t sample) const {
    return outlines_.shapes[static_cast<size_t>(sample)];
  }

  void add(std::span<const int64_t> samples, std::vector<SampleShape>& shapes) const {
    for (const int64_t sample : samples) {
      if (const auto& shape = shape_of(sample)) shapes.push_back(*shape);
    }
  }

  const DrawOrder& order_;
  const Outlines& outlines_;
  Cursor cursor_;
  std::vector<LaneWalk> walks_;
  std::vector<bool> is_known_;  // of each lane, whether it has a sample of known shape
};

/// As many as its samples of known shape make.
int64_t steps_of_epoch(const DrawOrder& order, const Outlines& outlines, int64_t units) {
  int64_t all = 0;
  for (int64_t lane = 0; lane < order.lanes(); ++lane) all += order.epoch(lane, 0)->units();
  const auto known = std::ranges::count_if(outlines.shapes, [](const auto& shape) { return shape.has_value(); });
  const double share = static_cast<double>(known) / static_cast<double>(std::max<int64_t>(1, order.samples()));
  return static_cast<int64_t>(share * static_cast<double>(all)) / units;
}

}  // namespace

std::vector<std::vector<SampleShape>> drawn_steps(const DrawOrder& order, const Outlines& outlines, int64_t units,
                                                  int64_t count) {
  VLMTRAIN_CHECK(units > 0 && count > 0, "{} steps of {} units", count, units);
  Draws draws(order, outlines);
  const int64_t all = std::max(count, steps_of_epoch(order, outlines, units));
  std::vector<std::vector<SampleShape>> steps;
  for (int64_t step = 0, wanted = 0; step < all; ++step) {
    auto shapes = draws.step(units);
    if (step < wanted * all / count) continue;
    ++wanted;
    if (!shapes.empty()) steps.push_back(std::move(shapes));
  }
  return steps;
}

}  // namespace vlmtrain::data
