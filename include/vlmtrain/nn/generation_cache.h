#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/mixers/gated_delta_net.h"

namespace vlmtrain::nn {

/// What the blocks of a text model remember of each sequence during generation: keys and values, or
/// the state of a gated delta net.
///
/// Each sequence has a slot of fixed capacity. A block has one tensor of all slots for keys and one
/// for values, [rows of all slots, key_value_heads, head_dim], allocated during the prefill. Keys
/// are therefore written once and never moved, the kernels read slots in place, and an
/// out-of-memory error occurs at the prefill instead of during decoding. The disadvantage: a
/// sequence that ends early has reserved memory for its maximum length. Not thread-safe.
class GenerationCache {
 public:
  /// `capacities`: maximum rows of each sequence, prompt and response together.
  GenerationCache(std::span<const int64_t> capacities, at::Device device);

  /// Begins a forward pass with rows.lengths[i] rows of sequence i. The first pass is the prefill,
  /// over the prompts; later passes have one row per sequence. `window` as in nn::attention().
  /// Throws InternalError if a capacity would be exceeded.
  void begin_forward(const Segments& rows, std::optional<int64_t> window);

  /// Writes the keys and values of the pass's rows, [rows, key_value_heads, head_dim], and computes
  /// attention of `query` [rows, heads, head_dim] to all rows so far of the same sequence. `block`
  /// counts from 0.
  at::Tensor attention(int64_t block, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

  // The steps of attention(), for blocks with different windows or other attention within prompts.

  /// Returns whether the current pass is the prefill.
  bool is_prefill() const { return is_prefill_; }
  /// Writes the keys and values of the pass's rows.
  void write(int64_t block, const at::Tensor& key, const at::Tensor& value);
  /// Computes attention of `query`, one row per sequence, to the cached rows including the newest.
  /// REQUIRES: !is_prefill().
  at::Tensor attend(int64_t block, const at::Tensor& query, std::optional<int64_t> window);

  /// Returns the state of a gated delta net, with a row per current sequence; undefined tensors
  /// before the prefill. `block` counts from 0.
  DeltaNetState& get_delta_net_state(int64_t block) { return delta_net_states_[block]; }

  /// Removes all sequences except `indices`, ascending indices into the current sequences. The
  /// memory of their keys and values is not freed.
  void batch_select_indices(std::span<const size_t> indices);

  /// Returns the memory of all blocks.
  int64_t bytes() const;

 private:
  /// The rows of one sequence: the first row, their maximum number, and the number written so far.
  struct Slot {
    int64_t start, capacity, num_written_rows;
  };
  struct BlockCache {
    at::Tensor keys, values;
  };
  struct WindowSlots {
    std::optional<int64_t> window;
    CacheSlots slots;
  };
  /// Returns the visible rows of each slot; computed once per pass and window.
  const CacheSlots& find_visible_slots(std::optional<int64_t> window);

  at::Device device_;
  int64_t total_rows_ = 0;
  std::vector<Slot> slots_;         // one per remaining sequence
  std::vector<BlockCache> blocks_;  // empty before the prefill; undefined tensors for gated delta nets
  std::map<int64_t, DeltaNetState> delta_net_states_;  // by block

  // The current pass.
  Segments segments_;
  std::optional<int64_t> window_;
  bool is_prefill_ = false;
  at::Tensor row_indices_;                    // int64 [rows of the pass]: the row of the cache for each
  std::vector<WindowSlots> slots_by_window_;  // filled on first use; empty during the prefill
};

}  // namespace vlmtrain::nn
