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

constexpr int64_t kUnitsPerCoefficient = 1024;  // of MemoryCostTable::bytes_per_1024_units
// JSON fields with their earlier names, which plans of earlier versions have.
constexpr io::FieldAlias kMaskImagesField{"mask_images", "mask_pictures"};
constexpr io::FieldAlias kPassImagesField{"pass_images", "pass_pictures"};
constexpr io::FieldAlias kMaxSamplesField{"max_samples", "most_samples"};
constexpr std::array<const char*, MemoryCostTable::kNumTerms> kTermNames{
    "samples",    "tokens",    "padded_tokens", "label_tokens",        "loss_rows",
    "pixel_rows", "pass_rows", "masks",         kMaskImagesField.name, kPassImagesField.name};

/// Returns the lower of both, or `number` if `limit` is 0.
int64_t clamp_to_limit(int64_t number, int64_t limit) {
  return limit > 0 ? std::min(number, limit) : number;
}

}  // namespace

MicroBatchSizes MicroBatchSizes::merge(const MicroBatchSizes& other) const {
  return {.samples = samples + other.samples,
          .tokens = tokens + other.tokens,
          .max_tokens = std::max(max_tokens, other.max_tokens),
          .label_tokens = label_tokens + other.label_tokens,
          .pixel_rows = pixel_rows + other.pixel_rows,
          .masks = masks + other.masks,
          .mask_images = mask_images + other.mask_images};
}

MicroBatchSizes compute_micro_batch_sizes(const data::SampleShape& shape) {
  return {.samples = 1,
          .tokens = shape.tokens,
          .max_tokens = shape.tokens,
          .label_tokens = shape.label_tokens,
          .pixel_rows = shape.pixel_rows,
          .masks = shape.masks,
          .mask_images = shape.mask_images};
}

MicroBatchSizes compute_micro_batch_sizes(std::span<const data::SampleShape> shapes) {
  MicroBatchSizes sizes;
  for (const auto& shape : shapes) sizes = sizes.merge(compute_micro_batch_sizes(shape));
  return sizes;
}

std::array<int64_t, MemoryCostTable::kNumTerms> MemoryCostTable::compute_terms(const MicroBatchSizes& sizes) const {
  return {sizes.samples,
          sizes.tokens,
          sizes.samples * sizes.max_tokens,
          sizes.label_tokens,
          clamp_to_limit(sizes.label_tokens, loss_chunk_rows),
          sizes.pixel_rows,
          clamp_to_limit(sizes.pixel_rows, vision_tiles_per_pass),
          sizes.masks,
          sizes.mask_images,
          clamp_to_limit(sizes.mask_images, vision_tiles_per_pass)};
}

int64_t MemoryCostTable::bytes(const MicroBatchSizes& sizes) const {
  const auto terms = compute_terms(sizes);
  int64_t sum = 0;
  for (size_t term = 0; term < kNumTerms; ++term) sum += terms[term] * bytes_per_1024_units[term];
  return base_bytes + (sum + kUnitsPerCoefficient - 1) / kUnitsPerCoefficient;
}

bool MemoryCostTable::fits(const MicroBatchSizes& sizes) const {
  return (max_samples == 0 || sizes.samples <= max_samples) && bytes(sizes) <= limit_bytes;
}

nlohmann::ordered_json MemoryCostTable::to_json() const {
  nlohmann::ordered_json weights;
  for (size_t term = 0; term < kNumTerms; ++term) weights[kTermNames[term]] = bytes_per_1024_units[term];
  io::add_field_aliases(weights, {kMaskImagesField, kPassImagesField});
  nlohmann::ordered_json json{{"base_bytes", base_bytes},
                              {"bytes_per_1024", weights},
                              {"vision_tiles_per_pass", vision_tiles_per_pass},
                              {"loss_chunk_rows", loss_chunk_rows},
                              {"limit_bytes", limit_bytes},
                              {kMaxSamplesField.name, max_samples}};
  io::add_field_aliases(json, {kMaxSamplesField});
  return json;
}

MemoryCostTable MemoryCostTable::from_json(const nlohmann::ordered_json& json, const std::string& source) {
  const auto read_count = [&](const nlohmann::ordered_json& object, const char* key) {
    const auto value = io::get<int64_t>(object, key, source);
    if (value < 0) throw data_error("{}: {}: must not be negative, is {}", source, key, value);
    return value;
  };
  MemoryCostTable table{.base_bytes = read_count(json, "base_bytes"),
                        .vision_tiles_per_pass = read_count(json, "vision_tiles_per_pass"),
                        .loss_chunk_rows = read_count(json, "loss_chunk_rows"),
                        .limit_bytes = read_count(json, "limit_bytes"),
                        .max_samples = read_count(json, io::find_field_name(json, kMaxSamplesField))};
  const auto weights = json.value("bytes_per_1024", nlohmann::ordered_json());
  for (size_t term = 0; term < kNumTerms; ++term) {
    const char* name = kTermNames[term];
    for (const io::FieldAlias field : {kMaskImagesField, kPassImagesField}) {
      if (std::string_view(field.name) == name) name = io::find_field_name(weights, field);
    }
    // Tables without mask terms were written by versions without masks.
    if (term < kMasks || weights.contains(name)) table.bytes_per_1024_units[term] = read_count(weights, name);
  }
  return table;
}

namespace {

/// Bounds the time of the search for one micro-batch less. Not tuned.
constexpr int64_t kMaxPlacements = 20'000;

/// Consecutive samples that have to stay in one micro-batch (engine::SplitConstraint::unit).
struct SplitUnit {
  int64_t first_sample = 0;  ///< index of its first sample in the step
  MicroBatchSizes sizes;
  int64_t bytes = 0;  ///< bound of a micro-batch of only this unit
};

/// A micro-batch under construction: a bin of the bin packing problem.
struct MicroBatchBin {
  MicroBatchSizes sizes;
  std::vector<const SplitUnit*> units = {};

  void add(const SplitUnit& unit) {
    sizes = sizes.merge(unit.sizes);
    units.push_back(&unit);
  }
  void remove(const SplitUnit& unit) {
    std::erase(units, &unit);
    sizes = {};
    for (const SplitUnit* remaining : units) sizes = sizes.merge(remaining->sizes);
  }
};

using MicroBatchBins = std::vector<MicroBatchBin>;
using UnitOrder = std::vector<const SplitUnit*>;

/// Returns orders of the units from largest to smallest: by bytes, and by each size.
std::vector<UnitOrder> make_unit_orders(const std::vector<SplitUnit>& units) {
  UnitOrder all_units;
  all_units.reserve(units.size());
  for (const SplitUnit& unit : units) all_units.push_back(&unit);
  std::vector<UnitOrder> orders;
  const auto add = [&](const auto& size) {
    UnitOrder order = all_units;
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](const SplitUnit* unit) { return std::tuple(size(*unit), unit->bytes); });
    if (std::ranges::find(orders, order) == orders.end()) orders.push_back(std::move(order));
  };
  add([](const SplitUnit& unit) { return unit.bytes; });
  add([](const SplitUnit& unit) { return unit.sizes.tokens; });
  add([](const SplitUnit& unit) { return unit.sizes.pixel_rows; });
  add([](const SplitUnit& unit) { return unit.sizes.label_tokens; });
  add([](const SplitUnit& unit) { return unit.sizes.masks; });
  return orders;
}

/// The bin of a unit: the first that has space, or the fullest that has space.
enum class PackingHeuristic { kFirstFit, kBestFit };

/// Places the units one by one, with a new bin if no bin has space.
MicroBatchBins pack(const UnitOrder& order, const MemoryCostTable& table, PackingHeuristic heuristic) {
  MicroBatchBins bins;
  for (const SplitUnit* unit : order) {
    MicroBatchBin* target_bin = nullptr;
    int64_t max_bytes = -1;
    for (MicroBatchBin& bin : bins) {
      const MicroBatchSizes combined = bin.sizes.merge(unit->sizes);
      if (!table.fits(combined)) continue;
      const int64_t bytes = heuristic == PackingHeuristic::kBestFit ? table.bytes(combined) : 0;
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
int64_t compute_min_num_bins(const std::vector<SplitUnit>& units, const MemoryCostTable& table) {
  MicroBatchSizes total_sizes;
  for (const SplitUnit& unit : units) total_sizes = total_sizes.merge(unit.sizes);
  MemoryCostTable additive_table = table;
  additive_table.base_bytes = 0;
  for (const auto term : {MemoryCostTable::kPaddedTokens, MemoryCostTable::kLossRows, MemoryCostTable::kVisionPassRows,
                          MemoryCostTable::kVisionPassImages}) {
    additive_table.bytes_per_1024_units[term] = 0;
  }
  const int64_t available_bytes = std::max<int64_t>(1, table.limit_bytes - table.base_bytes);
  const int64_t min_bins_by_bytes =
      additive_table.bytes(total_sizes) / available_bytes;  // rounds down, since the sums were rounded up
  const int64_t min_bins_by_samples =
      table.max_samples > 0 ? (total_sizes.samples + table.max_samples - 1) / table.max_samples : 1;
  return std::max({int64_t{1}, min_bins_by_bytes, min_bins_by_samples});
}

/// A depth-first search for a placement of all units in a given number of micro-batches.
class PlacementSearch {
 public:
  PlacementSearch(const UnitOrder& order, const MemoryCostTable& table, size_t bins)
      : order_(order), table_(table), bins_(bins) {}

  /// Returns nullopt if there is no placement or kMaxPlacements are exceeded. Called once.
  std::optional<MicroBatchBins> find() {
    if (!place_units(0)) return std::nullopt;
    return std::move(bins_);
  }

 private:
  /// Places the units from order_[next] on. Returns false if they cannot be placed.
  bool place_units(size_t next) {
    if (next == order_.size()) return true;
    const SplitUnit& unit = *order_[next];
    std::vector<MicroBatchSizes> tried_sizes;
    for (MicroBatchBin& bin : bins_) {
      if (++num_placements_ > kMaxPlacements) return false;
      // Micro-batches of equal sizes are equivalent.
      if (std::ranges::find(tried_sizes, bin.sizes) != tried_sizes.end()) continue;
      tried_sizes.push_back(bin.sizes);
      const MicroBatchSizes combined = bin.sizes.merge(unit.sizes);
      if (!bin.units.empty() && !table_.fits(combined)) continue;
      const MicroBatchSizes previous_sizes = std::exchange(bin.sizes, combined);
      bin.units.push_back(&unit);
      if (place_units(next + 1)) return true;
      bin.units.pop_back();
      bin.sizes = previous_sizes;
    }
    return false;
  }

  const UnitOrder& order_;
  const MemoryCostTable& table_;
  MicroBatchBins bins_;
  int64_t num_placements_ = 0;
};

/// Places each unit into the micro-batch with the fewest bytes. Returns nullopt if one does not fit.
std::optional<MicroBatchBins> spread_evenly_by_bytes(const UnitOrder& order, const MemoryCostTable& table,
                                                     size_t count) {
  MicroBatchBins bins(count);
  for (const SplitUnit* unit : order) {
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
      const SplitUnit& unit = *fullest_bin.units[i];
      for (MicroBatchBin& other_bin : bins) {
        if (&other_bin == &fullest_bin) continue;
        const MicroBatchSizes combined = other_bin.sizes.merge(unit.sizes);
        if (!table.fits(combined) || bytes(combined) >= fullest_bytes) continue;
        fullest_bin.remove(unit);
        other_bin.add(unit);
        moved = true;
        break;
      }
    }
  }
}

/// Returns the micro-batches of one group of samples, the largest first (split_by_memory()).
MicroBatchBins pack_units(const std::vector<SplitUnit>& units, const MemoryCostTable& table) {
  const auto orders = make_unit_orders(units);
  MicroBatchBins best_bins;
  for (const UnitOrder& order : orders) {
    for (const PackingHeuristic heuristic : {PackingHeuristic::kFirstFit, PackingHeuristic::kBestFit}) {
      MicroBatchBins bins = pack(order, table, heuristic);
      if (best_bins.empty() || bins.size() < best_bins.size()) best_bins = std::move(bins);
    }
  }
  const auto min_bins = static_cast<size_t>(compute_min_num_bins(units, table));
  while (best_bins.size() > min_bins) {
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
std::map<int64_t, std::vector<SplitUnit>> group_units(std::span<const data::SampleShape> shapes,
                                                      const MemoryCostTable& table,
                                                      const engine::SplitConstraint& constraint) {
  std::map<int64_t, std::vector<SplitUnit>> groups;
  for (int64_t first_sample = 0; first_sample < std::ssize(shapes); first_sample += constraint.unit) {
    const auto samples = shapes.subspan(static_cast<size_t>(first_sample), static_cast<size_t>(constraint.unit));
    SplitUnit unit{.first_sample = first_sample, .sizes = compute_micro_batch_sizes(samples)};
    unit.bytes = table.bytes(unit.sizes);
    groups[constraint.groups.empty() ? 0 : constraint.groups[static_cast<size_t>(first_sample)]].push_back(unit);
  }
  return groups;
}

/// Returns the split with the micro-batches of all groups. Samples are sorted within a micro-batch.
engine::MicroBatchSplit make_split(const std::vector<MicroBatchBins>& groups,
                                   const engine::SplitConstraint& constraint) {
  engine::MicroBatchSplit split{.order = {}, .sizes = {}, .unit = constraint.unit};
  for (const MicroBatchBins& bins : groups) {
    for (const MicroBatchBin& bin : bins) {
      std::vector<int64_t> first_samples;
      first_samples.reserve(bin.units.size());
      for (const SplitUnit* unit : bin.units) first_samples.push_back(unit->first_sample);
      std::ranges::sort(first_samples);
      split.sizes.push_back(std::ssize(first_samples) * constraint.unit);
      for (const int64_t first_sample : first_samples) {
        for (int64_t sample = 0; sample < constraint.unit; ++sample) split.order.push_back(first_sample + sample);
      }
    }
  }
  return split;
}

/// Returns the split into `micro_batches` equal numbers of samples, in order. Returns nullopt if there
/// is none, or a micro-batch does not fit or exceeds `max_bytes`.
std::optional<engine::MicroBatchSplit> find_equal_split(std::span<const data::SampleShape> shapes,
                                                        const MemoryCostTable& table,
                                                        const engine::SplitConstraint& constraint,
                                                        int64_t micro_batches, int64_t max_bytes) {
  const auto num_samples = std::ssize(shapes);
  const int64_t num_units = num_samples / constraint.unit;
  const int64_t size = (num_units + micro_batches - 1) / micro_batches * constraint.unit;
  engine::MicroBatchSplit split = engine::split_evenly(num_samples, size, constraint);
  if (split.micro_batches() != micro_batches) return std::nullopt;
  for (int64_t i = 0; i < micro_batches; ++i) {
    MicroBatchSizes sizes;
    for (const int64_t sample_index : split.micro_batch(i))
      sizes = sizes.merge(compute_micro_batch_sizes(shapes[static_cast<size_t>(sample_index)]));
    const bool is_single_unit = sizes.samples == constraint.unit;
    if (table.bytes(sizes) > max_bytes || (!is_single_unit && !table.fits(sizes))) return std::nullopt;
  }
  return split;
}

}  // namespace

engine::MicroBatchSplit split_by_memory(std::span<const data::SampleShape> shapes, const MemoryCostTable& table,
                                        const engine::SplitConstraint& constraint) {
  VLMTRAIN_CHECK(!shapes.empty() && constraint.unit > 0 && std::ssize(shapes) % constraint.unit == 0,
                 "cannot split {} samples into units of {}", shapes.size(), constraint.unit);
  VLMTRAIN_CHECK(constraint.groups.empty() || constraint.groups.size() == shapes.size(),
                 "groups are given for {} samples, expected {}", constraint.groups.size(), shapes.size());
  const auto groups = group_units(shapes, table, constraint);
  std::vector<MicroBatchBins> bins;
  int64_t max_bytes = 0;
  for (const auto& [group, units] : groups) {
    bins.push_back(pack_units(units, table));
    max_bytes = std::max(max_bytes, compute_max_bin_bytes(bins.back(), table));
  }
  engine::MicroBatchSplit split = make_split(bins, constraint);
  if (auto equal_split = find_equal_split(shapes, table, constraint, split.micro_batches(), max_bytes))
    return std::move(*equal_split);
  return split;
}

}  // namespace vlmtrain::planner
