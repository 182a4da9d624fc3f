#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/optimizer/chunks.h"
#include "engine/optimizer/compressed_states.h"
#include "engine/optimizer/state_memory.h"
#include "engine/optimizer/update_rule.h"
#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/nn/weights/split_values.h"

namespace vlmtrain::engine {

/// A trained parameter and its state on this rank.
struct ParameterState {
  std::string name;
  ParameterGroup group;
  at::Tensor parameter;  // the parameter of the model
  ElementRange range;    // local range of the flattened parameter
  at::Tensor weight;     // view of that range; has the parameter's shape if not sharded
  MasterWeights master_weights = MasterWeights::kFp32;
  at::Tensor master{};    // fp32, same shape as `weight`; shares its storage if `weight` is fp32; kFp32 only
  at::Tensor low_bits{};  // int16, same shape as `weight`; kSplit only
  /// fp32, same shape as `weight`, in the order of UpdateRule::moment_names(); empty if compressed
  std::vector<at::Tensor> moments{};

  bool has_compressed_moments() const { return moments.empty(); }
  bool has_local_elements() const { return range.count > 0; }
  /// Returns whether the weight has an fp32 copy.
  bool has_fp32_copy() const { return master.defined() && weight.scalar_type() != at::kFloat; }
  /// Returns whether the state has more of the master than the weight.
  bool has_master() const { return has_fp32_copy() || low_bits.defined(); }
};

/// A tensor of the saved state. With sharded state, `values` are the elements from `first` on of a
/// flattened tensor with `total` elements.
struct OptimizerStateTensor {
  std::string name;  // of the whole tensor, without the suffix of a shard
  nn::StoredTensor values;
  int64_t first = 0, total = 0;
  bool is_sharded = false;                    // whether each rank has a part of it
  const ParameterState* parameter = nullptr;  // of a moment or master; null otherwise
  bool is_master = false;

  at::IntArrayRef sizes() const { return values.values.sizes(); }
  int64_t numel() const { return values.values.numel(); }
  /// Returns the data type in a saved state. Masters are saved in fp32.
  at::ScalarType saved_dtype() const { return is_master ? at::kFloat : values.dtype(); }
};

/// The master weights and moments of this rank's parameters: in fp32, or masters and moments in other
/// formats. The constructor allocates all memory. Not thread-safe.
class OptimizerStateStorage {
 public:
  /// Creates masters with the values of the weights, and zero moments, for the parameters of `store`
  /// that require gradients. `rules` must outlive this object. REQUIRES: `buckets` has the same
  /// parameters. Throws the exceptions of memory::HostArena::allocate().
  OptimizerStateStorage(const nn::ParameterStore& store, const GradientBuckets& buckets,
                        const OptimizerSettings& settings, const UpdateRules& rules, Offload offload);

  /// Returns the trained parameters in the order of the gradient buckets.
  const std::vector<ParameterState>& parameters() const { return parameters_; }

  /// Returns the groups of an update: all parameters with a gradient and local elements. Allocates
  /// the buffers of chunks. `step_counters` is fp32 [parameters].
  std::vector<UpdateGroup> make_update_groups(const GradientBuckets& buckets, const at::Tensor& step_counters) const;

  /// Returns whether the rule of the parameter writes its 16-bit weight itself.
  bool is_fused(const ParameterState& parameter) const;

  /// Returns whether any moments are compressed without a fused rule, so that an update
  /// decompresses and compresses them.
  bool compresses_in_chunks() const;

  /// Returns whether moments or weights are rounded stochastically.
  bool rounds_stochastically() const;
  /// Sets the seeds of the stochastic rounding.
  void seed_rounding(uint64_t moments_seed, uint64_t weights_seed);

  /// Returns the tables of compressed moments; null with fp32 moments.
  const MomentTables* tables() const { return tables_ ? &*tables_ : nullptr; }

  /// Writes the fp32 values of the group's chunk into its buffers, before the update.
  void expand_chunk(const UpdateGroup& group) const;
  /// Stores the updated values of the group's chunk. Overwrites the buffers. `skipped`: see
  /// Moments::compress().
  void compress_chunk(const UpdateGroup& group, const at::Tensor& skipped);

  /// Returns the bytes of state in host memory.
  int64_t host_bytes() const { return memory_.host_bytes(); }

  /// Returns the moments of all parameters, and the masters of 16-bit weights, in the order of a
  /// saved state. Not copies; what is in host memory is a CPU tensor.
  std::vector<OptimizerStateTensor> collect_tensors() const;

  /// Returns the parameter's master, not a copy; what is in host memory is a CPU tensor.
  nn::StoredTensor get_stored_master(const ParameterState& parameter) const;
  /// Returns the master of the parameter as a tensor of the saved state.
  OptimizerStateTensor make_master_state_tensor(const ParameterState& parameter) const;

  /// Copies the masters that are whole to their 16-bit weights.
  void copy_masters_to_weights() const;

 private:
  /// Parameters with the same hyperparameters whose state is stored or updated in blocks.
  struct BlockGroup {
    ParameterGroup hyperparameters;
    std::vector<size_t> parameters;
    BlockLayout layout;
    std::unique_ptr<CompressedStates> states{};  // null: fp32 moments
  };

  void add_master(ParameterState& state, const nn::Parameter& parameter, const OptimizerSettings& settings);
  void add_moments(ParameterState& state);
  at::Tensor make_zeros(const ParameterState& state, at::ScalarType dtype);
  bool is_in_block_group(const ParameterState& parameter) const;
  bool is_updated_in_chunks(const ParameterState& parameter) const;
  void make_block_groups();
  UpdateTensor make_update_tensor(size_t i, const GradientBuckets& buckets, const at::Tensor& step_counters) const;
  UpdateTensor make_update_slice(const BlockGroup& group, const Chunk& chunk, const ChunkSlice& slice,
                                 const GradientBuckets& buckets, const at::Tensor& step_counters) const;
  void add_chunks(std::vector<UpdateGroup>& groups, const GradientBuckets& buckets,
                  const at::Tensor& step_counters) const;

  const UpdateRules& rules_;
  at::TensorOptions options_;  // of the weights' device
  StateMemory memory_;
  OptimizerStateDtype state_dtype_;
  std::vector<ParameterState> parameters_;
  std::optional<MomentTables> tables_;
  at::Generator weight_rounding_;  // defined if weights are rounded stochastically
  std::vector<BlockGroup> block_groups_;
  int64_t max_chunk_blocks_ = 0;
};

}  // namespace vlmtrain::engine
