#include "vlmtrain/nn/key_value_cache.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/copy.h"

namespace vlmtrain::nn {

KeyValueCache::KeyValueCache(std::span<const int64_t> capacities, at::Device device) : device_(device) {
  for (const int64_t capacity : capacities) {
    slots_.push_back({rows_, capacity, 0});
    rows_ += capacity;
  }
}

void KeyValueCache::append(const Segments& rows, std::optional<int64_t> window) {
  VLMTRAIN_CHECK(rows.lengths.size() == slots_.size(), "{} segments for {} cached sequences", rows.lengths.size(),
                 slots_.size());
  is_prompt_ = slots_.front().used == 0;
  VLMTRAIN_CHECK(is_prompt_ || rows.max_length == 1, "{} rows of a sequence after its prompt", rows.max_length);
  const at::Tensor places = at::empty({rows.rows}, at::kLong);
  auto* place = places.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const int64_t count = rows.lengths[i];
    VLMTRAIN_CHECK(slot.used + count <= slot.capacity, "{} rows for a cache of {}", slot.used + count, slot.capacity);
    std::iota(place, place + count, slot.start + slot.used);
    place += count;
    slot.used += count;
  }
  places_ = memory::copy_to_device(places, device_);
  appended_ = rows;
  window_ = window;
  seen_.clear();
}

const KeySlots& KeyValueCache::seen_through(std::optional<int64_t> window) {
  const auto known = std::ranges::find(seen_, window, &SeenSlots::window);
  if (known != seen_.end()) return known->slots;
  std::vector<int64_t> starts, lengths;
  for (const Slot& slot : slots_) {
    const int64_t seen = std::min(slot.used, window.value_or(slot.used));
    starts.push_back(slot.start + slot.used - seen);
    lengths.push_back(seen);
  }
  seen_.push_back({window, KeySlots::of(std::move(starts), std::move(lengths), device_)});
  return seen_.back().slots;
}

void KeyValueCache::write(int64_t block, const at::Tensor& key, const at::Tensor& value) {
  blocks_.resize(std::max(blocks_.size(), static_cast<size_t>(block) + 1));
  Rows& own = blocks_[static_cast<size_t>(block)];
  if (!own.keys.defined()) {
    VLMTRAIN_CHECK(is_prompt_, "block {} has not seen the prompts", block);
    own.keys = at::empty({rows_, key.size(1), key.size(2)}, key.options());
    own.values = at::empty({rows_, value.size(1), value.size(2)}, value.options());
  }
  own.keys.index_copy_(0, places_, key);
  own.values.index_copy_(0, places_, value);
}

at::Tensor KeyValueCache::read(int64_t block, const at::Tensor& query, std::optional<int64_t> window) {
  VLMTRAIN_CHECK(!is_prompt_, "a prompt is read through the cache, which holds rows of its own");
  const Rows& own = blocks_.at(static_cast<size_t>(block));
  return attention_to_slots(query, own.keys, own.values, seen_through(window));
}

at::Tensor KeyValueCache::attention(int64_t block, const at::Tensor& query, const at::Tensor& key,
                                    const at::Tensor& value) {
  write(block, key, value);
  if (is_prompt_) return nn::attention(query, key, value, appended_, /*causal=*/true, window_);
  return read(block, query, window_);
}

void KeyValueCache::keep(std::span<const size_t> places) {
  std::vector<Slot> kept;
  for (const size_t place : places) kept.push_back(slots_.at(place));
  slots_ = std::move(kept);
}

int64_t KeyValueCache::bytes() const {
  int64_t bytes = 0;
  for (const auto& [keys, values] : blocks_) bytes += static_cast<int64_t>(keys.nbytes() + values.nbytes());
  return bytes;
}

}  // namespace vlmtrain::nn
