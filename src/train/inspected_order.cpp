#include "train/inspected_order.h"

#include <algorithm>
#include <map>

#include "vlmtrain/data/epoch_progress.h"

namespace vlmtrain::train {

namespace {

/// Of the units that a lane has in `steps` steps of so many each, by the shares of each step.
double count_units_drawn(const data::SampleOrder& order, int64_t source, const Config& config, int64_t steps) {
  std::vector<int64_t> starts{0};
  for (const auto& change : config.data.task_shares.changes()) starts.push_back(change.from_step);
  std::ranges::sort(starts);
  starts.push_back(steps);
  double units = 0;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t count = std::min(starts[i + 1], steps) - std::min(starts[i], steps);
    units += order.mixture_sampler().shares(starts[i])[static_cast<size_t>(source)] * static_cast<double>(count);
  }
  return units * static_cast<double>(config.training.global_batch_size);
}

}  // namespace

std::vector<int64_t> find_first_samples(const data::SampleOrder& order,
                                        const std::map<int64_t, data::SampleProblem>& problems, int64_t count) {
  std::vector<int64_t> samples;
  data::Cursor cursor = order.start();
  std::map<int64_t, data::SourceIterator> walks;
  // Where most samples are bad, it is not gone through all of them for a few.
  constexpr int64_t kMaxUnits = 100'000;
  for (int64_t unit = 0; unit < kMaxUnits && std::ssize(samples) < count; ++unit) {
    const int64_t source = order.mixture_sampler().choose_source(cursor);
    const auto walk = walks.try_emplace(source, order, source, data::EpochPosition{}).first;
    for (const int64_t sample : walk->second.next().samples) {
      const bool is_added = std::ranges::find(samples, sample) != samples.end();
      if (!is_added && !problems.contains(sample) && std::ssize(samples) < count) samples.push_back(sample);
    }
  }
  return samples;
}

void add_order(const data::SampleOrder& order, const data::Ledger& ledger, const Config& config,
               report::Inspection& inspection) {
  const double units = data::count_epoch_units(order, ledger);
  inspection.steps = compute_total_steps(config.training, units);
  // With a goal of tokens it is not known beforehand how many units a step takes.
  const bool has_fixed_steps = !config.training.balance.global_batch_tokens;
  const auto total_units = static_cast<double>(inspection.steps * config.training.global_batch_size);
  if (has_fixed_steps && units > 0) inspection.epochs = total_units / units;
  if (order.num_sources() == 1) return;
  const auto is_usable = [&](int64_t sample) {
    return ledger.status(sample) != data::SampleStatus::kDropped &&
           ledger.status(sample) != data::SampleStatus::kFailed;
  };
  for (int64_t source = 0; source < order.num_sources(); ++source) {
    const data::MixtureSource& mixture_source = order.source(source);
    report::InspectedMixtureSource entry{.name = mixture_source.name,
                                         .share = order.mixture_sampler().shares(0)[static_cast<size_t>(source)],
                                         .num_usable = std::ranges::count_if(mixture_source.samples, is_usable),
                                         .repeat = mixture_source.repeat};
    const auto units_per_epoch = order.settings().packs ? order.epoch(source, 0)->units() : entry.num_usable;
    if (has_fixed_steps && units_per_epoch > 0) {
      entry.epochs = count_units_drawn(order, source, config, inspection.steps) / static_cast<double>(units_per_epoch);
    }
    inspection.mixture_sources.push_back(std::move(entry));
  }
}

}  // namespace vlmtrain::train
