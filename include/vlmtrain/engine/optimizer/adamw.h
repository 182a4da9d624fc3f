#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/engine/optimizer/loss_scale.h"
#include "vlmtrain/engine/optimizer/saved_state.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/kernels/adamw.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// The learning rates of one step by component.
struct LearningRates {
  double vision_tower = 0;
  double projector = 0;
  double language_model = 0;
  double masks = 0;  ///< for mask encoder and mask decoder

  /// Returns the learning rate of a component. REQUIRES: is_trainable(component).
  double get_learning_rate(nn::Component component) const;
};

/// The settings of AdamW.
struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;   ///< decoupled (Loshchilov and Hutter 2017, arXiv 1711.05101); not for 1-D tensors
  double max_grad_norm = 1.0;  ///< gradients are scaled down to this global norm; 0: no clipping
  std::optional<LossScaleSettings> loss_scale = std::nullopt;  ///< nullopt: no loss scale
  OptimizerStateDtype state_dtype = OptimizerStateDtype::kFp32;
  uint64_t seed = 0;  ///< seed of the stochastic rounding of bf16 moments
};

/// The outcome of migrate_state(), in numbers of trained parameters.
struct StateMigrationResult {
  int64_t num_migrated_parameters = 0;  ///< parameters whose moments and step counter were copied
  int64_t num_reset_parameters = 0;     ///< parameters whose moments and step counter remain zero
};

class CompressedStates;
struct Chunk;
struct ChunkContext;

/// A prepared optimizer step, from AdamW::prepare() for AdamW::apply_update(): all memory is
/// allocated, and no weight has changed.
struct OptimizerUpdate {
  /// The tensors that one call of a fused kernel updates. The lists have one entry per tensor.
  struct Group {
    nn::Component component = nn::Component::kUnused;  ///< determines the learning rate
    bool has_weight_decay = false;
    std::vector<at::Tensor> master_weights{}, gradients{}, first_moments{}, second_moments{}, steps{};
    std::vector<kernels::AdamWParameter> tensors{};  ///< arguments of the custom kernel; then the lists above are empty
    CompressedStates* compressed_states = nullptr;   ///< set for compressed moments, which are views of its buffers
    std::shared_ptr<const Chunk> chunk{};            ///< the updated part of compressed_states; null without it
  };

  at::Tensor grad_norm;  ///< fp32 scalar, before clipping and without the loss scale
  at::Tensor skipped;  ///< fp32 scalar: 1 if loss or norm is not finite, so that apply_update() skips the step; else 0
  at::Tensor loss_scale;  ///< fp32 scalar; undefined without a loss scale
  at::Tensor
      gradient_divisor;     ///< fp32 scalar that divides the gradients, from clipping and loss scale; may be undefined
  at::Tensor skipped_bool;  ///< bool scalar; defined for compressed moments with ATen's kernels
  std::vector<Group> groups;
  std::vector<at::Tensor> steps,
      increments;  ///< step counters of all updated tensors; all increments are the same scalar
  std::vector<at::Tensor> weights,
      master_weights;  ///< 16-bit weights, and their master weights, which apply_update() copies to them
};

/// AdamW with fp32 master weights. An fp32 parameter is its own master. The constructor allocates
/// all persistent memory. Not thread-safe.
///
/// With sharded state, that is if the shard of the gradient buckets does not cover all elements,
/// this rank has moments and masters only for its local ranges, and updates only these.
class AdamW {
 public:
  /// Creates the state of all parameters of `store` that require gradients. Reads the gradients of
  /// group 0 of `buckets`. REQUIRES: the weights are loaded; `buckets` has the same parameters and
  /// outlives this object.
  AdamW(const nn::ParameterStore& store, GradientBuckets& buckets, AdamWSettings settings);
  ~AdamW();
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  /// Prepares a step: computes the clipping, and whether the step is skipped. Allocates all memory
  /// of the step and changes nothing, so a step that fails here can be retried.
  ///
  /// `loss` is an fp32 scalar on the device without the loss scale; if undefined, only the norm
  /// decides whether the step is skipped. `norm` is the norm of the gradients of all ranks, an fp32
  /// scalar that is divided in place by the loss scale; if undefined, the norm of `buckets` is
  /// used, which requires that the state is not sharded. The norm is 0 if no parameter has a
  /// gradient.
  ///
  /// As in torch.optim, a parameter without a gradient in this step keeps its value and moments and
  /// gets no weight decay.
  OptimizerUpdate prepare(const at::Tensor& loss, const at::Tensor& norm = {}) const;

  /// Applies a prepared step: updates weights and loss scale and resets the buckets. Allocates no
  /// tensor memory. A skipped step changes no weight, moment or step counter. REQUIRES: no gradient
  /// was added since prepare().
  void apply_update(const OptimizerUpdate& update, const LearningRates& rates);

  /// Calls prepare() and apply_update(). Returns the norm. REQUIRES: the state is not sharded.
  at::Tensor step(const LearningRates& rates);

  /// Returns the factor by which the loss is multiplied before the backward pass, an fp32 scalar on
  /// the device, not a copy; undefined without a loss scale.
  at::Tensor loss_scale() const;

  /// Returns the state by name. The tensors are not copies: `steps` (fp32 [parameters], step
  /// counters), the state of the loss scale, `first_moment.NAME`, `second_moment.NAME`, and for
  /// 16-bit weights `master.NAME`. Compressed moments are [blocks, 256] with a padded last block:
  /// bf16, or uint8 with fp32 `first_moment_absmax.NAME` and `second_moment_absmax.NAME` [blocks].
  /// With bf16 moments, `updates` is the number of calls of apply_update().
  ///
  /// With sharded state, each rank returns its shards, named as in saved_state.h. Rank 0 also
  /// returns the tensors that are not sharded.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

  /// Restores a state that state() returned, on any number of ranks. For an fp32 weight,
  /// `master.NAME` is optional and holds its values. `source` names the file in messages. Throws
  /// UserError (kBadData) for a missing or unexpected tensor, or a wrong shape or data type; the
  /// state is then undefined.
  void load_state(const SavedOptimizerState& state, const std::string& source);

  /// Copies the matching part of the state of a run with other settings: all masters, a dynamic
  /// loss scale, and the moments and step counter of each parameter whose moments have the same
  /// shape and data type. Moments and step counters of other parameters remain zero. `store` has
  /// the model's parameters in the order of the saved step counters. `source` names the file in
  /// messages. Throws UserError (kBadData) if the step counters do not match the moments. REQUIRES:
  /// no step was made.
  StateMigrationResult migrate_state(const nn::ParameterStore& store, const SavedOptimizerState& saved,
                                     const std::string& source);

  const Shard& shard() const { return buckets_.shard(); }
  /// Returns the number of trained elements of the whole model, on every rank.
  int64_t count_trained_elements() const;

  /// Returns false while apply_update() runs, and after it failed: weights and state are then a
  /// mixture of two steps.
  bool are_states_consistent() const { return are_states_consistent_; }

  /// Returns the fp32 values of all trained parameters by name, not copies: the masters of 16-bit
  /// weights, and fp32 weights themselves. With sharded state, returns this rank's shards, named as
  /// in saved_state.h.
  std::vector<std::pair<std::string, at::Tensor>> master_weights() const;

 private:
  struct Entry;
  /// A tensor of the state. With sharded state, `values` are the elements from `first` on of a
  /// flattened tensor with `total` elements.
  struct OptimizerStateTensor {
    std::string name;  ///< of the whole tensor, without the suffix of a shard
    at::Tensor values;
    int64_t first = 0, total = 0;
    bool is_sharded = false;  ///< whether each rank has a part of it
  };
  /// Parameters with compressed moments that share learning rate and weight decay.
  struct CompressedMomentsGroup {
    nn::Component component;
    bool has_weight_decay;
    std::vector<size_t> entries;
    std::unique_ptr<CompressedStates> compressed_states;
  };

  at::Tensor get_gradient(size_t i) const;
  std::string make_saved_tensor_name(const OptimizerStateTensor& tensor) const;
  OptimizerStateTensor make_master_state_tensor(const Entry& entry) const;
  std::vector<OptimizerStateTensor> collect_state_tensors() const;
  void make_compressed_groups(const at::TensorOptions& options);
  void add_aten_groups(OptimizerUpdate& update) const;
  void add_compressed_chunks(OptimizerUpdate& update) const;
  bool has_custom_kernel() const;
  void add_custom_kernel_groups(OptimizerUpdate& update) const;
  void apply_custom_kernel(const OptimizerUpdate& update, const OptimizerUpdate::Group& group,
                           const LearningRates& rates, uint64_t rounding_seed) const;
  void copy_masters_to_weights();

  GradientBuckets& buckets_;
  AdamWSettings settings_;
  std::optional<LossScale> loss_scale_;
  std::vector<Entry> entries_;  // in the order of buckets_
  at::Tensor step_counters_;    // fp32 [entries]; each entry has a view
  std::unique_ptr<ChunkContext> chunk_context_;
  std::vector<CompressedMomentsGroup> compressed_groups_;
  at::Tensor num_updates_;  // int64 scalar on the host
  bool are_states_consistent_ = true;
};

}  // namespace vlmtrain::engine
