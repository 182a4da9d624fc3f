#include "train/inspected_order.h"

#include <algorithm>
#include <map>

#include "vlmtrain/data/epoch_progress.h"

namespace vlmtrain::train {

namespace {

/// Of the units that a lane has in `steps` steps of so many each, by the shares of each step.
double units_drawn(const data::DrawOrder& order, int64_t lane, const Config& config, int64_t steps) {
  std::vector<int64_t> starts{0};
  for (const auto& change : config.data.task_shares.changes()) starts.push_back(change.from_step);
  std::ranges::sort(starts);
  starts.push_back(steps);
  double units = 0;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t count = std::min(starts[i + 1], steps) - std::min(starts[i], steps);
    units += order.chooser().shares(starts[i])[static_cast<size_t>(lane)] * static_cast<double>(count);
  }
  return units * static_cast<double>(config.training.global_batch_size);
}

}  // namespace

std::vector<int64_t> drawn_first(const data::DrawOrder& order, const std::map<int64_t, data::SampleProblem>& problems,
                                 int64_t count) {
  std::vector<int64_t> drawn;
  data::Cursor cursor = order.start();
  std::map<int64_t, data::LaneWalk> walks;
  // Where most samples are bad, it is not gone through all of them for a few.
  constexpr int64_t kMostUnits = 100'000;
  for (int64_t unit = 0; unit < kMostUnits && std::ssize(drawn) < count; ++unit) {
    const int64_t lane = order.chooser().choose(cursor);
    const auto walk = walks.try_emplace(lane, order, lane, data::Place{}).first;
    for (const int64_t sample : walk->second.next().samples) {
      const bool is_there = std::ranges::find(drawn, sample) != drawn.end();
      if (!is_there && !problems.contains(sample) && std::ssize(drawn) < count) drawn.push_back(sample);
    }
  }
  return drawn;
}

void enter_order(const data::DrawOrder& order, const data::Ledger& ledger, const Config& config,
                 report::Inspection& inspection) {
  const double units = data::units_of_epoch(order, ledger);
  inspection.steps = total_steps(config.training, units);
  // With a goal of tokens it is not known beforehand how many units a step takes.
  const bool has_fixed_steps = !config.training.balance.global_batch_tokens;
  const auto drawn = static_cast<double>(inspection.steps * config.training.global_batch_size);
  if (has_fixed_steps && units > 0) inspection.epochs = drawn / units;
  if (order.lanes() == 1) return;
  const auto is_usable = [&](int64_t sample) {
    return ledger.status(sample) != data::SampleStatus::kDropped &&
           ledger.status(sample) != data::SampleStatus::kFailed;
  };
  for (int64_t number = 0; number < order.lanes(); ++number) {
    const data::Lane& lane = order.lane(number);
    report::InspectedLane entry{.name = lane.name,
                                .share = order.chooser().shares(0)[static_cast<size_t>(number)],
                                .usable = std::ranges::count_if(lane.samples, is_usable),
                                .repeat = lane.repeat};
    const auto of_epoch = order.settings().packs ? order.epoch(number, 0)->units() : entry.usable;
    if (has_fixed_steps && of_epoch > 0) {
      entry.epochs = units_drawn(order, number, config, inspection.steps) / static_cast<double>(of_epoch);
    }
    inspection.lanes.push_back(std::move(entry));
  }
}

}  // namespace vlmtrain::train
