#include "vlmtrain/data/packing.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"

namespace vlmtrain::data {

namespace {

/// The room that is left in a pack.
struct Room {
  int64_t tokens = 0;
  int64_t images = 0;
  int64_t tiles = 0;

  bool has_media() const { return images > 0 && tiles > 0; }
  bool holds(const SampleSize& size) const {
    return size.tokens <= tokens && size.images <= images && size.tiles <= tiles;
  }
  void take(const SampleSize& size) {
    tokens -= size.tokens;
    images -= size.images;
    tiles -= size.tiles;
  }
};

Room room_of(const PackLimits& limits) {
  return {.tokens = limits.tokens,
          .images = limits.images,
          .tiles = limits.tiles.value_or(std::numeric_limits<int64_t>::max())};
}

/// The packs of one window while they are filled.
class OpenPacks {
 public:
  explicit OpenPacks(const PackLimits& limits) : limits_(limits) {}

  void put(int64_t sample, const SampleSize& size) {
    const auto pack = best_for(size);
    Room& room = rooms_[pack];
    room.take(size);
    members_[pack].push_back(sample);
    // Packs without room for another picture are out of the way of those with pictures.
    (room.has_media() ? with_room_for_media_ : without_).emplace(room.tokens, pack);
  }

  std::vector<std::vector<int64_t>> take() { return std::move(members_); }

 private:
  using ByTokens = std::set<std::pair<int64_t, size_t>>;

  size_t best_for(const SampleSize& size) {
    const auto in_one = first_that_holds(with_room_for_media_, size);
    const auto in_other = size.images == 0 ? first_that_holds(without_, size) : without_.end();
    const bool is_one = in_one != with_room_for_media_.end();
    const bool is_other = in_other != without_.end();
    if (!is_one && !is_other) {
      rooms_.push_back(room_of(limits_));
      members_.emplace_back();
      return rooms_.size() - 1;
    }
    const bool takes_other = is_other && (!is_one || in_other->first <= in_one->first);
    ByTokens& packs = takes_other ? without_ : with_room_for_media_;
    const auto found = takes_other ? in_other : in_one;
    const size_t pack = found->second;
    packs.erase(found);
    return pack;
  }

  ByTokens::const_iterator first_that_holds(const ByTokens& packs, const SampleSize& size) const {
    auto pack = packs.lower_bound({size.tokens, 0});
    while (pack != packs.end() && !rooms_[pack->second].holds(size)) ++pack;
    return pack;
  }

  const PackLimits& limits_;
  std::vector<Room> rooms_;
  std::vector<std::vector<int64_t>> members_;
  ByTokens with_room_for_media_;  // by the tokens that fit in
  ByTokens without_;
};

}  // namespace

Packs pack(std::span<const int64_t> order, const std::vector<SampleSize>& sizes, const PackLimits& limits,
           uint64_t seed) {
  Packs packs;
  packs.samples.reserve(order.size());
  uint64_t number = 0;
  for (; !order.empty(); ++number) {
    const auto count = std::min(order.size(), static_cast<size_t>(std::max<int64_t>(limits.window, 1)));
    std::vector<int64_t> window(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
    order = order.subspan(count);
    const auto size_of = [&](int64_t sample) -> const SampleSize& { return sizes[static_cast<size_t>(sample)]; };
    std::ranges::stable_sort(window, [&](int64_t left, int64_t right) {
      return std::pair(size_of(left).tokens, size_of(left).images) >
             std::pair(size_of(right).tokens, size_of(right).images);
    });
    OpenPacks open(limits);
    for (const int64_t sample : window) {
      VLMTRAIN_CHECK(limits.holds(size_of(sample)), "sample {} is larger than a pack", sample);
      open.put(sample, size_of(sample));
    }
    const auto made = open.take();
    for (const int64_t place : permutation(std::ssize(made), stream_seed(seed, "packs", {number}))) {
      const auto& members = made[static_cast<size_t>(place)];
      packs.samples.insert(packs.samples.end(), members.begin(), members.end());
      packs.ends.push_back(std::ssize(packs.samples));
    }
  }
  return packs;
}

}  // namespace vlmtrain::data
