#include "vlmtrain/planner/step_cut.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

/// Placements that the search for one micro-batch less tries.
constexpr int64_t kMostPlacements = 20'000;

/// Samples that stand or fall together.
struct Unit {
  int64_t place = 0;  ///< of its first sample in the step
  SetSizes sizes;
  int64_t bytes = 0;  ///< of a micro-batch of it alone
};

struct Bin {
  SetSizes sizes;
  std::vector<const Unit*> units = {};

  void put(const Unit& unit) {
    sizes = sizes.with(unit.sizes);
    units.push_back(&unit);
  }
  void take(const Unit& unit) {
    std::erase(units, &unit);
    sizes = {};
    for (const Unit* left : units) sizes = sizes.with(left->sizes);
  }
};

using Bins = std::vector<Bin>;
using Order = std::vector<const Unit*>;

/// Orders of units, the largest first: by bytes, and by each of the sizes that they follow from.
std::vector<Order> orders_of(const std::vector<Unit>& units) {
  Order all;
  all.reserve(units.size());
  for (const Unit& unit : units) all.push_back(&unit);
  std::vector<Order> orders;
  const auto add = [&](const auto& size) {
    Order order = all;
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](const Unit* unit) { return std::tuple(size(*unit), unit->bytes); });
    if (std::ranges::find(orders, order) == orders.end()) orders.push_back(std::move(order));
  };
  add([](const Unit& unit) { return unit.bytes; });
  add([](const Unit& unit) { return unit.sizes.tokens; });
  add([](const Unit& unit) { return unit.sizes.pixel_rows; });
  add([](const Unit& unit) { return unit.sizes.label_tokens; });
  add([](const Unit& unit) { return unit.sizes.masks; });
  return orders;
}

enum class Fit { kFirst, kBest };

Bins pack(const Order& order, const CostTable& table, Fit fit) {
  Bins bins;
  for (const Unit* unit : order) {
    Bin* into = nullptr;
    int64_t most = -1;
    for (Bin& bin : bins) {
      const SetSizes together = bin.sizes.with(unit->sizes);
      if (!table.fits(together)) continue;
      const int64_t bytes = fit == Fit::kBest ? table.bytes(together) : 0;
      if (bytes <= most) continue;
      into = &bin;
      most = bytes;
    }
    if (into == nullptr) into = &bins.emplace_back();
    into->put(*unit);
  }
  return bins;
}

/// No cut has fewer: of what only ever adds up, a micro-batch holds so much.
int64_t least_bins(const std::vector<Unit>& units, const CostTable& table) {
  SetSizes all;
  for (const Unit& unit : units) all = all.with(unit.sizes);
  CostTable additive = table;
  additive.base_bytes = 0;
  for (const auto term :
       {CostTable::kPaddedTokens, CostTable::kLossRows, CostTable::kPassRows, CostTable::kPassPictures}) {
    additive.bytes_per_1024[term] = 0;
  }
  const int64_t room = std::max<int64_t>(1, table.limit_bytes - table.base_bytes);
  const int64_t by_bytes = additive.bytes(all) / room;  // rounded down: sums are rounded up
  const int64_t by_count = table.most_samples > 0 ? (all.samples + table.most_samples - 1) / table.most_samples : 1;
  return std::max({int64_t{1}, by_bytes, by_count});
}

/// Depth first: each unit in turn into each micro-batch that holds it.
class Search {
 public:
  Search(const Order& order, const CostTable& table, size_t bins) : order_(order), table_(table), bins_(bins) {}

  std::optional<Bins> find() {
    if (!place(0)) return std::nullopt;
    return std::move(bins_);
  }

 private:
  bool place(size_t next) {
    if (next == order_.size()) return true;
    const Unit& unit = *order_[next];
    std::vector<SetSizes> tried;
    for (Bin& bin : bins_) {
      if (++placements_ > kMostPlacements) return false;
      // Micro-batches that hold as much are one for this search.
      if (std::ranges::find(tried, bin.sizes) != tried.end()) continue;
      tried.push_back(bin.sizes);
      const SetSizes together = bin.sizes.with(unit.sizes);
      if (!bin.units.empty() && !table_.fits(together)) continue;
      const SetSizes before = std::exchange(bin.sizes, together);
      bin.units.push_back(&unit);
      if (place(next + 1)) return true;
      bin.units.pop_back();
      bin.sizes = before;
    }
    return false;
  }

  const Order& order_;
  const CostTable& table_;
  Bins bins_;
  int64_t placements_ = 0;
};

/// Each into the micro-batch that takes least so far; nothing where that does not fit.
std::optional<Bins> spread(const Order& order, const CostTable& table, size_t count) {
  Bins bins(count);
  for (const Unit* unit : order) {
    Bin* into = nullptr;
    for (Bin& bin : bins) {
      if (!bin.units.empty() && !table.fits(bin.sizes.with(unit->sizes))) continue;
      if (into == nullptr || table.bytes(bin.sizes) < table.bytes(into->sizes)) into = &bin;
    }
    if (into == nullptr) return std::nullopt;
    into->put(*unit);
  }
  return bins;
}

int64_t fullest(const Bins& bins, const CostTable& table) {
  int64_t most = 0;
  for (const Bin& bin : bins) most = std::max(most, table.bytes(bin.sizes));
  return most;
}

/// Moves units out of the fullest micro-batch as long as that makes the fuller of the two less full.
void even_out(Bins& bins, const CostTable& table) {
  const auto bytes = [&](const SetSizes& sizes) { return table.bytes(sizes); };
  for (bool moved = true; moved;) {
    moved = false;
    auto& from = *std::ranges::max_element(bins, {}, [&](const Bin& bin) { return bytes(bin.sizes); });
    const int64_t before = bytes(from.sizes);
    for (size_t i = 0; !moved && i < from.units.size() && from.units.size() > 1; ++i) {
      const Unit& unit = *from.units[i];
      for (Bin& to : bins) {
        if (&to == &from) continue;
        const SetSizes together = to.sizes.with(unit.sizes);
        if (!table.fits(together) || bytes(together) >= before) continue;
        from.take(unit);
        to.put(unit);
        moved = true;
        break;
      }
    }
  }
}

Bins bins_of(const std::vector<Unit>& units, const CostTable& table) {
  const auto orders = orders_of(units);
  Bins fewest;
  for (const Order& order : orders) {
    for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
      Bins bins = pack(order, table, fit);
      if (fewest.empty() || bins.size() < fewest.size()) fewest = std::move(bins);
    }
  }
  const auto least = static_cast<size_t>(least_bins(units, table));
  while (fewest.size() > least) {
    auto fewer = Search(orders.front(), table, fewest.size() - 1).find();
    if (!fewer) break;
    fewest = std::move(*fewer);
  }
  if (auto even = spread(orders.front(), table, fewest.size()); even && even->size() == fewest.size()) {
    fewest = std::move(*even);
  }
  std::erase_if(fewest, [](const Bin& bin) { return bin.units.empty(); });
  even_out(fewest, table);
  std::ranges::stable_sort(fewest, std::ranges::greater{}, [&](const Bin& bin) { return table.bytes(bin.sizes); });
  return fewest;
}

/// By the number of their group.
std::map<int64_t, std::vector<Unit>> units_by_group(std::span<const data::SampleShape> shapes, const CostTable& table,
                                                    const engine::CutRule& rule) {
  std::map<int64_t, std::vector<Unit>> groups;
  for (int64_t place = 0; place < std::ssize(shapes); place += rule.unit) {
    const auto samples = shapes.subspan(static_cast<size_t>(place), static_cast<size_t>(rule.unit));
    Unit unit{.place = place, .sizes = sizes_of(samples)};
    unit.bytes = table.bytes(unit.sizes);
    groups[rule.groups.empty() ? 0 : rule.groups[static_cast<size_t>(place)]].push_back(unit);
  }
  return groups;
}

engine::Cut cut_of(const std::vector<Bins>& groups, const engine::CutRule& rule) {
  engine::Cut cut{.order = {}, .sizes = {}, .unit = rule.unit};
  for (const Bins& bins : groups) {
    for (const Bin& bin : bins) {
      std::vector<int64_t> places;
      places.reserve(bin.units.size());
      for (const Unit* unit : bin.units) places.push_back(unit->place);
      std::ranges::sort(places);
      cut.sizes.push_back(std::ssize(places) * rule.unit);
      for (const int64_t place : places) {
        for (int64_t sample = 0; sample < rule.unit; ++sample) cut.order.push_back(place + sample);
      }
    }
  }
  return cut;
}

/// Equal numbers in their order, if these are as many micro-batches, none of which takes more than `most` bytes.
std::optional<engine::Cut> equal_cut_as_good(std::span<const data::SampleShape> shapes, const CostTable& table,
                                             const engine::CutRule& rule, int64_t micro_batches, int64_t most) {
  const auto samples = std::ssize(shapes);
  const int64_t units = samples / rule.unit;
  const int64_t size = (units + micro_batches - 1) / micro_batches * rule.unit;
  engine::Cut cut = engine::equal_cut(samples, size, rule);
  if (cut.micro_batches() != micro_batches) return std::nullopt;
  for (int64_t i = 0; i < micro_batches; ++i) {
    SetSizes sizes;
    for (const int64_t place : cut.micro_batch(i)) sizes = sizes.with(sizes_of(shapes[static_cast<size_t>(place)]));
    const bool stands_alone = sizes.samples == rule.unit;
    if (table.bytes(sizes) > most || (!stands_alone && !table.fits(sizes))) return std::nullopt;
  }
  return cut;
}

}  // namespace

engine::Cut cut_by_memory(std::span<const data::SampleShape> shapes, const CostTable& table,
                          const engine::CutRule& rule) {
  VLMTRAIN_CHECK(!shapes.empty() && rule.unit > 0 && std::ssize(shapes) % rule.unit == 0, "{} samples in units of {}",
                 shapes.size(), rule.unit);
  VLMTRAIN_CHECK(rule.groups.empty() || rule.groups.size() == shapes.size(), "groups of {} samples for {}",
                 rule.groups.size(), shapes.size());
  const auto groups = units_by_group(shapes, table, rule);
  std::vector<Bins> bins;
  int64_t most = 0;
  for (const auto& [group, units] : groups) {
    bins.push_back(bins_of(units, table));
    most = std::max(most, fullest(bins.back(), table));
  }
  engine::Cut cut = cut_of(bins, rule);
  if (auto equal = equal_cut_as_good(shapes, table, rule, cut.micro_batches(), most)) return std::move(*equal);
  return cut;
}

}  // namespace vlmtrain::planner
