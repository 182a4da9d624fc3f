#include "vlmtrain/nn/generation_cache.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device_copy.h"

namespace vlmtrain::nn {

GenerationCache::GenerationCache(std::span<const int64_t> capacities, at::Device device) : device_(device) {
  for (const int64_t capacity : capacities) {
    slots_.push_back({total_rows_, capacity, 0});
    total_rows_ += capacity;
  }
}

void GenerationCache::begin_forward(const Segments& rows, std::optional<int64_t> window) {
  VLMTRAIN_CHECK(rows.lengths.size() == slots_.size(), "got {} segments for {} cached sequences", rows.lengths.size(),
                 slots_.size());
  is_prefill_ = slots_.front().num_written_rows == 0;
  VLMTRAIN_CHECK(is_prefill_ || rows.max_length == 1, "expected one row per sequence after the prefill, got {}",
                 rows.max_length);
  const at::Tensor row_indices = at::empty({rows.rows}, at::kLong);
  auto* next_row_index = row_indices.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const int64_t count = rows.lengths[i];
    VLMTRAIN_CHECK(slot.num_written_rows + count <= slot.capacity, "{} rows exceed the cache capacity of {}",
                   slot.num_written_rows + count, slot.capacity);
    std::iota(next_row_index, next_row_index + count, slot.start + slot.num_written_rows);
    next_row_index += count;
    slot.num_written_rows += count;
  }
  row_indices_ = memory::copy_to_device(row_indices, device_);
  segments_ = rows;
  window_ = window;
  slots_by_window_.clear();
}

const CacheSlots& GenerationCache::find_visible_slots(std::optional<int64_t> window) {
  const auto it = std::ranges::find(slots_by_window_, window, &WindowSlots::window);
  if (it != slots_by_window_.end()) return it->slots;
  std::vector<int64_t> starts, lengths;
  for (const Slot& slot : slots_) {
    const int64_t num_visible_rows = std::min(slot.num_written_rows, window.value_or(slot.num_written_rows));
    starts.push_back(slot.start + slot.num_written_rows - num_visible_rows);
    lengths.push_back(num_visible_rows);
  }
  slots_by_window_.push_back(
      {window, CacheSlots::from_starts_and_lengths(std::move(starts), std::move(lengths), device_)});
  return slots_by_window_.back().slots;
}

void GenerationCache::write(int64_t block, const at::Tensor& key, const at::Tensor& value) {
  blocks_.resize(std::max(blocks_.size(), static_cast<size_t>(block) + 1));
  BlockCache& block_cache = blocks_[static_cast<size_t>(block)];
  if (!block_cache.keys.defined()) {
    VLMTRAIN_CHECK(is_prefill_, "block {} was not part of the prefill", block);
    block_cache.keys = at::empty({total_rows_, key.size(1), key.size(2)}, key.options());
    block_cache.values = at::empty({total_rows_, value.size(1), value.size(2)}, value.options());
  }
  block_cache.keys.index_copy_(0, row_indices_, key);
  block_cache.values.index_copy_(0, row_indices_, value);
}

at::Tensor GenerationCache::attend(int64_t block, const at::Tensor& query, std::optional<int64_t> window) {
  VLMTRAIN_CHECK(!is_prefill_, "cached attention is not available during the prefill");
  const BlockCache& block_cache = blocks_.at(static_cast<size_t>(block));
  return decode_attention(query, block_cache.keys, block_cache.values, find_visible_slots(window));
}

at::Tensor GenerationCache::attention(int64_t block, const at::Tensor& query, const at::Tensor& key,
                                      const at::Tensor& value) {
  write(block, key, value);
  if (is_prefill_) return nn::attention(query, key, value, segments_, /*is_causal=*/true, window_);
  return attend(block, query, window_);
}

void GenerationCache::batch_select_indices(std::span<const size_t> indices) {
  if (indices.size() == slots_.size()) return;
  std::vector<Slot> selected_slots;
  for (const size_t index : indices) selected_slots.push_back(slots_.at(index));
  slots_ = std::move(selected_slots);
  if (delta_net_states_.empty() || indices.empty()) return;
  const at::Tensor rows = memory::copy_to_device(std::vector<int64_t>(indices.begin(), indices.end()), device_);
  for (auto& [block, state] : delta_net_states_) {
    state = {.states = state.states.index_select(0, rows), .history = state.history.index_select(0, rows)};
  }
}

int64_t GenerationCache::bytes() const {
  int64_t bytes = 0;
  const auto add = [&bytes](const at::Tensor& tensor) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  };
  for (const auto& [keys, values] : blocks_) {
    add(keys);
    add(values);
  }
  for (const auto& [block, state] : delta_net_states_) {
    add(state.states);
    add(state.history);
  }
  return bytes;
}

}  // namespace vlmtrain::nn
