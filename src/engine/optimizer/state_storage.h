#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/optimizer/compressed_states.h"
#include "engine/optimizer/update_rule.h"
#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// A trained parameter and its state on this rank.
struct ParameterState {
  std::string name;
  ParameterGroup group;
  at::Tensor parameter;  // the parameter of the model
  ElementRange range;    // local range of the flattened parameter
  at::Tensor weight;     // view of that range; has the parameter's shape if not sharded
  at::Tensor master;     // fp32, same shape as `weight`; shares its storage if `weight` is fp32
  /// fp32, same shape as `weight`, in the order of UpdateRule::moment_names(); empty if compressed
  std::vector<at::Tensor> moments{};

  bool has_compressed_moments() const { return moments.empty(); }
  bool has_local_elements() const { return range.count > 0; }
  bool has_master() const { return weight.scalar_type() != at::kFloat; }
};

/// A tensor of the saved state. With sharded state, `values` are the elements from `first` on of a
/// flattened tensor with `total` elements.
struct OptimizerStateTensor {
  std::string name;  // of the whole tensor, without the suffix of a shard
  at::Tensor values;
  int64_t first = 0, total = 0;
  bool is_sharded = false;                    // whether each rank has a part of it
  const ParameterState* parameter = nullptr;  // of a moment or master; null otherwise
  bool is_master = false;
};

/// The master weights and moments of this rank's parameters: in fp32, or moments in a compressed
/// format. The constructor allocates all memory. Not thread-safe.
class OptimizerStateStorage {
 public:
  /// Creates masters with the values of the weights, and zero moments, for the parameters of `store`
  /// that require gradients. `rules` must outlive this object. REQUIRES: `buckets` has the same
  /// parameters.
  OptimizerStateStorage(const nn::ParameterStore& store, const GradientBuckets& buckets,
                        const OptimizerSettings& settings, const UpdateRules& rules);

  /// Returns the trained parameters in the order of the gradient buckets.
  const std::vector<ParameterState>& parameters() const { return parameters_; }

  /// Returns the groups of an update: all parameters with a gradient and local elements. Allocates
  /// the buffers of compressed moments. `step_counters` is fp32 [parameters].
  std::vector<UpdateGroup> make_update_groups(const GradientBuckets& buckets, const at::Tensor& step_counters) const;

  /// Returns whether the rule of the parameter writes its 16-bit weight itself.
  bool is_fused(const ParameterState& parameter) const;

  /// Returns whether any moments are compressed without a fused rule, so that an update
  /// decompresses and compresses them.
  bool compresses_in_chunks() const;

  /// Sets the seed of the stochastic rounding of bf16 moments. REQUIRES: moments are in bf16.
  void seed_rounding(uint64_t seed) { chunk_context_->tables.random.set_current_seed(seed); }

  /// Returns the tables of compressed moments; null with fp32 moments.
  const MomentTables* tables() const { return chunk_context_ ? &chunk_context_->tables : nullptr; }

  /// Returns the moments of all parameters, and the masters of 16-bit weights, in the order of a
  /// saved state. Not copies.
  std::vector<OptimizerStateTensor> collect_tensors() const;

  /// Copies all masters to their 16-bit weights.
  void copy_masters_to_weights() const;

 private:
  /// Parameters with compressed moments and the same hyperparameters.
  struct CompressedGroup {
    ParameterGroup hyperparameters;
    std::vector<size_t> parameters{};
    std::unique_ptr<CompressedStates> states{};
  };

  void make_compressed_groups(const at::TensorOptions& options);
  UpdateTensor make_update_tensor(size_t i, const GradientBuckets& buckets, const at::Tensor& step_counters) const;
  void add_chunks(std::vector<UpdateGroup>& groups, const GradientBuckets& buckets,
                  const at::Tensor& step_counters) const;

  const UpdateRules& rules_;
  OptimizerStateDtype state_dtype_;
  std::vector<ParameterState> parameters_;
  std::unique_ptr<ChunkContext> chunk_context_;
  std::vector<CompressedGroup> compressed_groups_;
};

/// Returns the master of the parameter as a tensor of the saved state.
OptimizerStateTensor make_master_state_tensor(const ParameterState& parameter);

}  // namespace vlmtrain::engine
