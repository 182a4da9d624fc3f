#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "vlmtrain/nn/attention.h"
#include "vlmtrain/nn/segments.h"

namespace vlmtrain::nn {

/// The keys and values of sequences that are being generated, for every block of a text model, so that a new token runs
/// the model over itself only.
///
/// Each sequence has a slot of a fixed capacity. A block has one tensor of all slots for its keys and one for its
/// values, [rows, key_value_heads, head_dim], made when the prompts pass. So a key is written once and never moved, the
/// kernels read the slots where they lie, a sequence that ends costs nothing, and what does not fit in memory fails at
/// the prompts, not within an answer. The price: an answer that ends early had room for the longest one.
class KeyValueCache {
 public:
  /// `capacities`: the most rows of each sequence, prompt and answer.
  KeyValueCache(std::span<const int64_t> capacities, at::Device device);

  /// A forward pass begins: over the prompts, rows.lengths[i] of sequence i, when the cache is empty; from then on over
  /// one row a sequence. `window` as attention().
  void begin_forward(const Segments& rows, std::optional<int64_t> window);

  /// Keeps the keys and values of that pass's rows, [rows, key_value_heads, head_dim], and lets its `query` [rows,
  /// heads, head_dim] attend to these and all before them of the own sequence. `block` counts from 0.
  at::Tensor attention(int64_t block, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

  // attention() in its parts, for blocks whose windows differ or whose prompts are seen in another way.

  /// Whether the pass at hand is over the prompts, whose rows see each other and nothing else.
  bool is_prefill() const { return is_prefill_; }
  /// Keeps the keys and values of the pass's rows.
  void write(int64_t block, const at::Tensor& key, const at::Tensor& value);
  /// What `query`, of one row a sequence, sees of what is kept of it, the row itself included. REQUIRES: !is_prefill().
  at::Tensor attend(int64_t block, const at::Tensor& query, std::optional<int64_t> window);

  /// Goes on with some of the sequences: `indices`, ascending, among those there are.
  void batch_select_indices(std::span<const size_t> indices);

  /// Of all blocks.
  int64_t bytes() const;

 private:
  struct Slot {
    int64_t start, capacity, used;
  };
  struct BlockCache {
    at::Tensor keys, values;
  };
  struct WindowSlots {
    std::optional<int64_t> window;
    CacheSlots slots;
  };
  const CacheSlots& find_slots(std::optional<int64_t> window);

  at::Device device_;
  int64_t total_rows_ = 0;
  std::vector<Slot> slots_;         // of the sequences that go on
  std::vector<BlockCache> blocks_;  // undefined before their first pass

  // The pass at hand.
  Segments segments_;
  std::optional<int64_t> window_;
  bool is_prefill_ = false;
  at::Tensor row_indices_;                    // int64 [appended rows]
  std::vector<WindowSlots> slots_by_window_;  // of each window that was read through; none of the prompts
};

}  // namespace vlmtrain::nn
