#include "vlmtrain/data/drawn_steps.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

namespace {

/// The samples of one step after the other.
class StepSimulator {
 public:
  StepSimulator(const SampleOrder& order, const SampleShapes& shapes)
      : order_(order), shapes_(shapes), cursor_(order.start()) {
    iterators_.reserve(static_cast<size_t>(order.num_sources()));
    for (int64_t source = 0; source < order.num_sources(); ++source) {
      iterators_.emplace_back(order, source, EpochPosition{});
      has_known_samples_.push_back(
          std::ranges::any_of(order.epoch(source, 0)->samples, [&](int64_t sample) { return shapes.has(sample); }));
    }
  }

  /// By rank.
  std::vector<std::vector<int64_t>> next_step(int64_t units, int64_t ranks) {
    std::vector<std::vector<int64_t>> samples_by_rank(static_cast<size_t>(ranks));
    for (int64_t unit = 0; unit < units; ++unit) {
      const auto source = static_cast<size_t>(order_.mixture_sampler().choose_source(cursor_));
      auto& samples = samples_by_rank[static_cast<size_t>(unit % ranks)];
      const size_t size_before = samples.size();
      while (has_known_samples_[source] && samples.size() == size_before) {
        std::ranges::copy_if(iterators_[source].next().samples, std::back_inserter(samples),
                             [this](int64_t sample) { return shapes_.has(sample); });
      }
    }
    ++cursor_.num_batches;
    return samples_by_rank;
  }

 private:
  const SampleOrder& order_;
  const SampleShapes& shapes_;
  Cursor cursor_;
  std::vector<SourceIterator> iterators_;
  std::vector<bool> has_known_samples_;  // of each lane, whether it has a sample of known shape
};

/// As many as its samples of known shape make.
int64_t count_epoch_steps(const SampleOrder& order, const SampleShapes& shapes, int64_t units) {
  int64_t total_units = 0;
  for (int64_t source = 0; source < order.num_sources(); ++source) total_units += order.epoch(source, 0)->units();
  const double share =
      static_cast<double>(shapes.num_known()) / static_cast<double>(std::max<int64_t>(1, order.samples()));
  return static_cast<int64_t>(share * static_cast<double>(total_units)) / units;
}

}  // namespace

std::vector<ShapesByRank> simulate_steps(const SampleOrder& order, const SampleShapes& shapes, int64_t units,
                                         int64_t count, int64_t ranks) {
  VLMTRAIN_CHECK(units > 0 && count > 0 && ranks > 0, "{} steps of {} units of {} ranks", count, units, ranks);
  StepSimulator simulator(order, shapes);
  const int64_t total_steps = std::max(count, count_epoch_steps(order, shapes, units));
  std::vector<ShapesByRank> steps;
  for (int64_t step_index = 0, num_selected = 0; step_index < total_steps; ++step_index) {
    const auto samples_by_rank = simulator.next_step(units, ranks);
    if (step_index < num_selected * total_steps / count) continue;
    ++num_selected;
    if (std::ranges::all_of(samples_by_rank, &std::vector<int64_t>::empty)) continue;
    auto& shapes_by_rank = steps.emplace_back();
    for (const auto& rank_samples : samples_by_rank) {
      auto& rank_shapes = shapes_by_rank.emplace_back();
      for (const int64_t sample : rank_samples) rank_shapes.push_back(shapes.at(sample));
    }
  }
  return steps;
}

}  // namespace vlmtrain::data
