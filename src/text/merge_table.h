#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace vlmtrain::text {

/// What two neighbouring tokens become, and how early: the lowest rank merges first.
struct Merge {
  uint32_t rank;
  uint32_t id;
};

/// The merges of a BPE model by the pair of ids: an open-addressing hash table, at most half full. It is looked up for
/// every pair of neighbours in every text, several times as fast as std::unordered_map.
class MergeTable {
 public:
  explicit MergeTable(size_t merges) : slots_(std::bit_ceil(merges * 2 + 2)) {}

  /// A pair that is there already gets the new merge.
  void insert(uint32_t left, uint32_t right, Merge merge) {
    Slot& slot = slots_[find_slot(make_key(left, right))];
    slot = {make_key(left, right), merge};
  }
  /// Null if the pair does not merge.
  const Merge* find(uint32_t left, uint32_t right) const {
    const Slot& slot = slots_[find_slot(make_key(left, right))];
    return slot.key == kFree ? nullptr : &slot.merge;
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};  // ids are below 2^26, so no pair has this key
  struct Slot {
    uint64_t key = kFree;
    Merge merge{};
  };

  static uint64_t make_key(uint32_t left, uint32_t right) { return uint64_t{left} << 32U | right; }
  size_t find_slot(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t index = (key * 0x9E3779B97F4A7C15ULL) >> 20U & mask;
    while (slots_[index].key != kFree && slots_[index].key != key) index = (index + 1) & mask;
    return index;
  }

  std::vector<Slot> slots_;
};

}  // namespace vlmtrain::text
