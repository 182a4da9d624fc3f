#include "vlmtrain/planner/split_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::planner {

namespace {

/// Bounds the time of the search for one micro-batch less. Not tuned.
constexpr int64_t kMaxPlacements = 20'000;

/// Consecutive samples that have to stay in one micro-batch (engine::SplitConstraint::unit_size).
struct SampleUnit {
  int64_t first_sample_index = 0;  ///< in the step
  MicroBatchSizes sizes;
  int64_t bytes = 0;  ///< bound of a micro-batch of only this unit
};

/// A micro-batch under construction: a bin of the bin packing problem.
struct MicroBatchBin {
  MicroBatchSizes sizes;
  std::vector<const SampleUnit*> units = {};

  void add(const SampleUnit& unit) {
    sizes = sizes.merge(unit.sizes);
    units.push_back(&unit);
  }
  void remove(const SampleUnit& unit) {
    std::erase(units, &unit);
    sizes = {};
    for (const SampleUnit* remaining : units) sizes = sizes.merge(remaining->sizes);
  }
};

using MicroBatchBins = std::vector<MicroBatchBin>;
using SampleUnitOrder = std::vector<const SampleUnit*>;

/// Returns orders of the units from largest to smallest: by bytes, and by each size.
std::vector<SampleUnitOrder> make_sample_unit_orders(const std::vector<SampleUnit>& units) {
  SampleUnitOrder all_sample_units;
  all_sample_units.reserve(units.size());
  for (const SampleUnit& unit : units) all_sample_units.push_back(&unit);
  std::vector<SampleUnitOrder> orders;
  const auto add = [&](const auto& size) {
    SampleUnitOrder order = all_sample_units;
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](const SampleUnit* unit) { return std::tuple(size(*unit), unit->bytes); });
    if (std::ranges::find(orders, order) == orders.end()) orders.push_back(std::move(order));
  };
  add([](const SampleUnit& unit) { return unit.bytes; });
  add([](const SampleUnit& unit) { return unit.sizes.tokens; });
  add([](const SampleUnit& unit) { return unit.sizes.pixel_rows; });
  add([](const SampleUnit& unit) { return unit.sizes.label_tokens; });
  add([](const SampleUnit& unit) { return unit.sizes.masks; });
  return orders;
}

/// The bin of a unit: the first that has space, or the fullest that has space.
enum class PackingHeuristic { kFirstFit, kBestFit };

/// Places the units one by one, with a new bin if no bin has space.
MicroBatchBins pack_in_order(const SampleUnitOrder& order, const MemoryCostTable& table, PackingHeuristic heuristic) {
  MicroBatchBins bins;
  for (const SampleUnit* unit : order) {
    MicroBatchBin* target_bin = nullptr;
    int64_t max_bytes = -1;
    for (MicroBatchBin& bin : bins) {
      const MicroBatchSizes combined_sizes = bin.sizes.merge(unit->sizes);
      if (!table.fits(combined_sizes)) continue;
      const int64_t bytes = heuristic == PackingHeuristic::kBestFit ? table.bytes(combined_sizes) : 0;
      if (bytes <= max_bytes) continue;
      target_bin = &bin;
      max_bytes = bytes;
    }
    if (target_bin == nullptr) target_bin = &bins.emplace_back();
    target_bin->add(*unit);
  }
  return bins;
}

/// Returns a lower bound of the number of micro-batches. Uses only terms that are sums over
/// samples, since the others do not add up over micro-batches.
int64_t compute_min_num_bins(const std::vector<SampleUnit>& units, const MemoryCostTable& table) {
  MicroBatchSizes total_sizes;
  for (const SampleUnit& unit : units) total_sizes = total_sizes.merge(unit.sizes);
  MemoryCostTable additive_table = table;
  additive_table.base_bytes = 0;
  for (const auto term : {MemoryCostTable::kPaddedTokens, MemoryCostTable::kLossRows, MemoryCostTable::kVisionPassRows,
                          MemoryCostTable::kVisionPassImagesWithMasks}) {
    additive_table.bytes_per_1024_units[term] = 0;
  }
  const int64_t available_bytes = std::max<int64_t>(1, table.limit_bytes - table.base_bytes);
  const int64_t min_num_bins_by_bytes =
      additive_table.bytes(total_sizes) / available_bytes;  // rounds down, since the sums were rounded up
  const int64_t min_num_bins_by_samples =
      table.max_samples > 0 ? (total_sizes.samples + table.max_samples - 1) / table.max_samples : 1;
  return std::max({int64_t{1}, min_num_bins_by_bytes, min_num_bins_by_samples});
}

/// A depth-first search for a placement of all units in a given number of micro-batches.
class PlacementSearch {
 public:
  PlacementSearch(const SampleUnitOrder& order, const MemoryCostTable& table, size_t bins)
      : order_(order), table_(table), bins_(bins) {}

  /// Returns nullopt if there is no placement or kMaxPlacements are exceeded. Called once.
  std::optional<MicroBatchBins> find() {
    if (!try_place_sample_units(0)) return std::nullopt;
    return std::move(bins_);
  }

 private:
  /// Places the units from order_[next] on. Returns false if they cannot be placed.
  bool try_place_sample_units(size_t next) {
    if (next == order_.size()) return true;
    const SampleUnit& unit = *order_[next];
    std::vector<MicroBatchSizes> tried_sizes;
    for (MicroBatchBin& bin : bins_) {
      if (++num_placements_ > kMaxPlacements) return false;
      // Micro-batches of equal sizes are equivalent.
      if (std::ranges::find(tried_sizes, bin.sizes) != tried_sizes.end()) continue;
      tried_sizes.push_back(bin.sizes);
      const MicroBatchSizes combined_sizes = bin.sizes.merge(unit.sizes);
      if (!bin.units.empty() && !table_.fits(combined_sizes)) continue;
      const MicroBatchSizes previous_sizes = std::exchange(bin.sizes, combined_sizes);
      bin.units.push_back(&unit);
      if (try_place_sample_units(next + 1)) return true;
      bin.units.pop_back();
      bin.sizes = previous_sizes;
    }
    return false;
  }

  const SampleUnitOrder& order_;
  const MemoryCostTable& table_;
  MicroBatchBins bins_;
  int64_t num_placements_ = 0;
};

/// Places each unit into the micro-batch with the fewest bytes. Returns nullopt if one does not
/// fit.
std::optional<MicroBatchBins> spread_evenly_by_bytes(const SampleUnitOrder& order, const MemoryCostTable& table,
                                                     size_t count) {
  MicroBatchBins bins(count);
  for (const SampleUnit* unit : order) {
    MicroBatchBin* target_bin = nullptr;
    for (MicroBatchBin& bin : bins) {
      if (!bin.units.empty() && !table.fits(bin.sizes.merge(unit->sizes))) continue;
      if (target_bin == nullptr || table.bytes(bin.sizes) < table.bytes(target_bin->sizes)) target_bin = &bin;
    }
    if (target_bin == nullptr) return std::nullopt;
    target_bin->add(*unit);
  }
  return bins;
}

int64_t compute_max_bin_bytes(const MicroBatchBins& bins, const MemoryCostTable& table) {
  int64_t max_bytes = 0;
  for (const MicroBatchBin& bin : bins) max_bytes = std::max(max_bytes, table.bytes(bin.sizes));
  return max_bytes;
}

/// Moves units from the fullest micro-batch to others while this lowers the larger of both.
void balance_bins(MicroBatchBins& bins, const MemoryCostTable& table) {
  const auto bytes = [&](const MicroBatchSizes& sizes) { return table.bytes(sizes); };
  for (bool moved = true; moved;) {
    moved = false;
    auto& fullest_bin = *std::ranges::max_element(bins, {}, [&](const MicroBatchBin& bin) { return bytes(bin.sizes); });
    const int64_t fullest_bytes = bytes(fullest_bin.sizes);
    for (size_t i = 0; !moved && i < fullest_bin.units.size() && fullest_bin.units.size() > 1; ++i) {
      const SampleUnit& unit = *fullest_bin.units[i];
      for (MicroBatchBin& other_bin : bins) {
        if (&other_bin == &fullest_bin) continue;
        const MicroBatchSizes combined_sizes = other_bin.sizes.merge(unit.sizes);
        if (!table.fits(combined_sizes) || bytes(combined_sizes) >= fullest_bytes) continue;
        fullest_bin.remove(unit);
        other_bin.add(unit);
        moved = true;
        break;
      }
    }
  }
}

/// Returns the micro-batches of one group of samples, the largest first (split_by_memory()).
MicroBatchBins pack_sample_units(const std::vector<SampleUnit>& units, const MemoryCostTable& table) {
  const auto orders = make_sample_unit_orders(units);
  MicroBatchBins best_bins;
  for (const SampleUnitOrder& order : orders) {
    for (const PackingHeuristic heuristic : {PackingHeuristic::kFirstFit, PackingHeuristic::kBestFit}) {
      MicroBatchBins bins = pack_in_order(order, table, heuristic);
      if (best_bins.empty() || bins.size() < best_bins.size()) best_bins = std::move(bins);
    }
  }
  const auto min_num_bins = static_cast<size_t>(compute_min_num_bins(units, table));
  while (best_bins.size() > min_num_bins) {
    auto fewer_bins = PlacementSearch(orders.front(), table, best_bins.size() - 1).find();
    if (!fewer_bins) break;
    best_bins = std::move(*fewer_bins);
  }
  if (auto balanced = spread_evenly_by_bytes(orders.front(), table, best_bins.size());
      balanced && balanced->size() == best_bins.size()) {
    best_bins = std::move(*balanced);
  }
  std::erase_if(best_bins, [](const MicroBatchBin& bin) { return bin.units.empty(); });
  balance_bins(best_bins, table);
  std::ranges::stable_sort(best_bins, std::ranges::greater{},
                           [&](const MicroBatchBin& bin) { return table.bytes(bin.sizes); });
  return best_bins;
}

/// Returns the units of each group of samples, by group.
std::map<int64_t, std::vector<SampleUnit>> group_sample_units(std::span<const data::SampleShape> shapes,
                                                              const MemoryCostTable& table,
                                                              const engine::SplitConstraint& constraint) {
  std::map<int64_t, std::vector<SampleUnit>> groups;
  for (int64_t first_sample_index = 0; first_sample_index < std::ssize(shapes);
       first_sample_index += constraint.unit_size) {
    const auto samples =
        shapes.subspan(static_cast<size_t>(first_sample_index), static_cast<size_t>(constraint.unit_size));
    SampleUnit unit{.first_sample_index = first_sample_index, .sizes = compute_micro_batch_sizes(samples)};
    unit.bytes = table.bytes(unit.sizes);
    groups[constraint.groups.empty() ? 0 : constraint.groups[static_cast<size_t>(first_sample_index)]].push_back(unit);
  }
  return groups;
}

/// Returns the split with the micro-batches of all groups. Samples are sorted within a micro-batch.
engine::MicroBatchSplit make_micro_batch_split(const std::vector<MicroBatchBins>& groups,
                                               const engine::SplitConstraint& constraint) {
  engine::MicroBatchSplit split{.order = {}, .sizes = {}, .unit_size = constraint.unit_size};
  for (const MicroBatchBins& bins : groups) {
    for (const MicroBatchBin& bin : bins) {
      std::vector<int64_t> first_sample_indices;
      first_sample_indices.reserve(bin.units.size());
      for (const SampleUnit* unit : bin.units) first_sample_indices.push_back(unit->first_sample_index);
      std::ranges::sort(first_sample_indices);
      split.sizes.push_back(std::ssize(first_sample_indices) * constraint.unit_size);
      for (const int64_t first_sample_index : first_sample_indices) {
        for (int64_t sample = 0; sample < constraint.unit_size; ++sample)
          split.order.push_back(first_sample_index + sample);
      }
    }
  }
  return split;
}

/// Returns the split into `num_micro_batches` equal numbers of samples, in order. Returns nullopt
/// if there is none, or a micro-batch does not fit or exceeds `max_bytes`.
std::optional<engine::MicroBatchSplit> find_equal_split(std::span<const data::SampleShape> shapes,
                                                        const MemoryCostTable& table,
                                                        const engine::SplitConstraint& constraint,
                                                        int64_t num_micro_batches, int64_t max_bytes) {
  const auto num_samples = std::ssize(shapes);
  const int64_t num_units = num_samples / constraint.unit_size;
  const int64_t size = (num_units + num_micro_batches - 1) / num_micro_batches * constraint.unit_size;
  engine::MicroBatchSplit split = engine::split_evenly(num_samples, size, constraint);
  if (split.num_micro_batches() != num_micro_batches) return std::nullopt;
  for (int64_t i = 0; i < num_micro_batches; ++i) {
    MicroBatchSizes sizes;
    for (const int64_t sample_index : split.get_sample_indices(i))
      sizes = sizes.merge(compute_micro_batch_sizes(shapes[static_cast<size_t>(sample_index)]));
    const bool is_single_sample_unit = sizes.samples == constraint.unit_size;
    if (table.bytes(sizes) > max_bytes || (!is_single_sample_unit && !table.fits(sizes))) return std::nullopt;
  }
  return split;
}

}  // namespace

engine::MicroBatchSplit split_by_memory(std::span<const data::SampleShape> shapes, const MemoryCostTable& table,
                                        const engine::SplitConstraint& constraint) {
  VLMTRAIN_CHECK(!shapes.empty() && constraint.unit_size > 0 && std::ssize(shapes) % constraint.unit_size == 0,
                 "cannot split {} samples into units of {}", shapes.size(), constraint.unit_size);
  VLMTRAIN_CHECK(constraint.groups.empty() || constraint.groups.size() == shapes.size(),
                 "groups are given for {} samples, expected {}", constraint.groups.size(), shapes.size());
  const auto groups = group_sample_units(shapes, table, constraint);
  std::vector<MicroBatchBins> bins;
  int64_t max_bytes = 0;
  for (const auto& [group, units] : groups) {
    bins.push_back(pack_sample_units(units, table));
    max_bytes = std::max(max_bytes, compute_max_bin_bytes(bins.back(), table));
  }
  engine::MicroBatchSplit split = make_micro_batch_split(bins, constraint);
  if (auto equal_split = find_equal_split(shapes, table, constraint, split.num_micro_batches(), max_bytes))
    return std::move(*equal_split);
  return split;
}

}  // namespace vlmtrain::planner
