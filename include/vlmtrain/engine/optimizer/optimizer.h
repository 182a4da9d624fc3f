#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/engine/gradients/gradient_layout.h"
#include "vlmtrain/engine/optimizer/saved_state.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/nn/weights/split_values.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::engine {

/// The learning rates of one step by component.
struct LearningRates {
  double vision_tower = 0;
  double projector = 0;
  double language_model = 0;
  double masks = 0;            ///< for mask encoder and mask decoder
  double schedule_factor = 1;  ///< factor of the peak learning rates of parameter groups

  /// Returns the learning rate of a component. Throws InternalError unless is_trainable(component).
  double get_learning_rate(nn::Component component) const;
};

/// A loss scale, which keeps small gradients from underflowing in fp16 (Micikevicius et al. 2017,
/// arXiv 1710.03740). As in torch.amp.GradScaler, a dynamic scale is halved after a step with
/// overflowing gradients, which is skipped, and doubled after `growth_interval` consecutive steps
/// without an overflow. The scale is on the device, and the host never reads it. Not thread-safe.
class LossScale {
 public:
  /// Creates the scale on the device of `options`.
  LossScale(const LossScaleSettings& settings, at::TensorOptions options);

  /// Returns the fp32 scalar, which update() changes in place.
  const at::Tensor& value() const { return scale_; }

  /// Updates the scale after a step. `skipped` is an fp32 scalar on the device: 1 if the gradients
  /// overflowed, else 0. Allocates nothing.
  void update(const at::Tensor& skipped);

  /// Returns `loss_scale` (fp32 scalar) and `loss_scale_good_steps` (int32 scalar), not copies.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  LossScaleSettings settings_;
  at::Tensor scale_;
  at::Tensor steps_without_overflow_;  // int32 scalar; counted since the scale last changed
};

class OptimizerStateStorage;
class UpdateRules;
struct OptimizerStateTensor;
struct ParameterState;
struct PreparedGroups;

/// A prepared optimizer step, from Optimizer::prepare() for Optimizer::apply_update(): all memory is
/// allocated, and no weight has changed.
struct OptimizerUpdate {
  at::Tensor grad_norm;   ///< fp32 scalar, before clipping and without the loss scale
  at::Tensor skipped;     ///< fp32 scalar: 1 if loss or norm is not finite, so that the step is skipped; else 0
  at::Tensor loss_scale;  ///< fp32 scalar; undefined without a loss scale
  std::shared_ptr<const PreparedGroups> groups;  ///< the updated tensors
};

/// The outcome of migrate_state(), in numbers of trained parameters.
struct StateMigrationResult {
  int64_t num_migrated_parameters = 0;  ///< parameters whose moments and step counter were copied
  int64_t num_reset_parameters = 0;     ///< parameters whose moments and step counter remain zero
};

/// Returns whether a saved state has moments of a parameter, of any rule.
bool has_moments(const SavedOptimizerState& state, const std::string& parameter);

/// Returns a predicate of parameters of `store` that one rank must have whole to update them; empty
/// if there are none. Throws UserError (kUsage) for invalid parameter groups.
GradientLayout::UndividedPredicate find_undivided_parameters(const nn::ParameterStore& store,
                                                             const OptimizerSettings& settings);

/// An optimizer with fp32 master weights in the format of OptimizerSettings::master_weights. An fp32
/// parameter is its own master. The arithmetic is that of the update rules (OptimizerKind); this class has what they
/// share: clipping, loss scale, skipped steps, master weights, and the saved state. The constructor allocates all
/// persistent memory. Not thread-safe.
///
/// With sharded state, that is if the shard of the gradient buckets does not cover all elements,
/// this rank has moments and masters only for its local ranges, and updates only these.
class Optimizer {
 public:
  /// Creates the state of all parameters of `store` that require gradients. Reads the gradients of
  /// group 0 of `buckets`. With `offload`, the state of parameters that AdamW updates is in host memory,
  /// except for that of less than 4,096 elements and the scales of 8-bit moments. REQUIRES: the weights are
  /// loaded; `buckets` has the same parameters and outlives this object. Throws the exceptions of
  /// memory::HostArena::allocate().
  Optimizer(const nn::ParameterStore& store, GradientBuckets& buckets, const OptimizerSettings& settings,
            Offload offload = Offload::kNone);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

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

  /// Returns the state by name. The tensors are not copies; those in host memory are CPU tensors, which may be
  /// read until apply_update(). Masters may be in two halves: `steps` (fp32 [parameters],
  /// step counters), the state of the loss scale, `MOMENT.NAME` for each moment of the parameter's rule (AdamW:
  /// `first_moment`, `second_moment`), and for 16-bit weights `master.NAME`, unless they are rounded stochastically.
  /// Compressed moments are [blocks, 256] with a padded last block: bf16, or uint8 with fp32 `first_moment_absmax.NAME`
  /// and `second_moment_absmax.NAME` [blocks]. With stochastic rounding, `updates` is the number of calls of
  /// apply_update().
  ///
  /// With sharded state, each rank returns its shards, named as in saved_state.h. Rank 0 also
  /// returns the tensors that are not sharded.
  std::vector<std::pair<std::string, nn::StoredTensor>> state() const;

  /// Restores a state that state() returned, on any number of ranks and with any format of masters. For
  /// a weight that is its own master, `master.NAME` is optional and holds its values. If weights are
  /// rounded stochastically, all masters are optional. `source` names the file in messages. Throws
  /// UserError (kBadData) for a missing or unexpected tensor, or a wrong shape or data type; the
  /// state is then undefined.
  void load_state(const SavedOptimizerState& state, const std::string& source);

  /// Copies the matching part of the state of a run with other settings: all masters, a dynamic
  /// loss scale, and the moments and step counter of each parameter whose moments have the same
  /// names, shape and data type. Moments and step counters of other parameters remain zero. `store`
  /// has the model's parameters in the order of the saved step counters. `source` names the file in
  /// messages. Throws UserError (kBadData) if the step counters do not match the moments. REQUIRES:
  /// no step was made.
  StateMigrationResult migrate_state(const nn::ParameterStore& store, const SavedOptimizerState& saved,
                                     const std::string& source);

  const Shard& shard() const { return buckets_.shard(); }
  /// Returns the bytes of state in host memory. An update reads and writes all of them once.
  int64_t host_bytes() const;
  /// Returns the number of trained elements of the whole model, on every rank.
  int64_t count_trained_elements() const;

  /// Returns false while apply_update() runs, and after it failed: weights and state are then a
  /// mixture of two steps.
  bool are_states_consistent() const { return are_states_consistent_; }

  /// Returns the masters of all trained parameters by name, not copies. A weight without a master, in
  /// fp32 or rounded stochastically, is its own. With sharded state, returns this rank's shards, named as
  /// in saved_state.h.
  std::vector<std::pair<std::string, nn::StoredTensor>> master_weights() const;

 private:
  bool needs_bool_skip_flag() const;
  uint64_t start_rounding_sequence();
  std::string make_saved_tensor_name(const OptimizerStateTensor& tensor) const;
  std::vector<OptimizerStateTensor> collect_state_tensors() const;
  bool is_optional(const OptimizerStateTensor& tensor) const;
  void check_saved_tensors(const std::vector<OptimizerStateTensor>& expected_tensors, const SavedOptimizerState& saved,
                           const std::string& source) const;
  std::optional<at::Tensor> read_matching_values(const OptimizerStateTensor& tensor,
                                                 const SavedOptimizerState& saved) const;
  void migrate_shared_tensors(const std::vector<OptimizerStateTensor>& tensors, const SavedOptimizerState& saved) const;
  bool migrate_moments(const ParameterState& parameter, const std::vector<OptimizerStateTensor>& tensors,
                       const SavedOptimizerState& saved) const;

  GradientBuckets& buckets_;
  OptimizerSettings settings_;
  std::unique_ptr<const UpdateRules> rules_;
  std::unique_ptr<OptimizerStateStorage> storage_;
  std::optional<LossScale> loss_scale_;
  at::Tensor step_counters_;  // fp32 [parameters]
  at::Tensor num_updates_;    // int64 scalar on the host; undefined without stochastic rounding
  bool are_states_consistent_ = true;
};

}  // namespace vlmtrain::engine
