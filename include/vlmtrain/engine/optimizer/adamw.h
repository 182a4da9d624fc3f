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
  double get(nn::Component component) const;
};

/// The settings of AdamW.
struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;   ///< decoupled (Loshchilov and Hutter 2017, arXiv 1711.05101); not for vectors
  double max_grad_norm = 1.0;  ///< 0: no clipping
  std::optional<LossScaleSettings> loss_scale = std::nullopt;
  OptimizerStates states = OptimizerStates::kFp32;
  uint64_t seed = 0;  ///< seed of the stochastic rounding of bf16 moments
};

/// The outcome of migrate_state(), in tensors.
struct MigratedState {
  int64_t migrated = 0;  ///< moments taken over
  int64_t reset = 0;     ///< moments reset to zero
};

class CompressedStates;
struct Chunk;
struct ChunkContext;

/// A prepared optimizer step: all memory is allocated, and no weight has changed.
struct OptimizerUpdate {
  /// The tensors updated by one call of a fused kernel.
  struct Group {
    nn::Component component = nn::Component::kUnused;  ///< determines the learning rate
    bool has_weight_decay = false;
    std::vector<at::Tensor> masters{}, gradients{}, first_moments{}, second_moments{}, steps{};
    std::vector<kernels::AdamWParameter> tensors{};  ///< arguments of the custom kernel, which replace the lists above
    CompressedStates* states = nullptr;    ///< set if moments are compressed; the moments are then views of its buffers
    std::shared_ptr<const Chunk> chunk{};  ///< the part of `states`
  };

  at::Tensor grad_norm;     ///< fp32 scalar, before clipping and without the loss scale
  at::Tensor skipped;       ///< fp32 scalar: 1 if loss or norm is not finite, so apply() changes nothing; else 0
  at::Tensor loss_scale;    ///< fp32 scalar; undefined without a loss scale
  at::Tensor divisor;       ///< fp32 scalar that divides the gradients, from clipping and loss scale; may be undefined
  at::Tensor skipped_flag;  ///< bool scalar; defined for compressed moments with ATen's kernels
  std::vector<Group> groups;
  std::vector<at::Tensor> steps,
      increments;  ///< step counters of all updated tensors; all increments are the same scalar
  std::vector<at::Tensor> weights, masters;  ///< 16-bit weights and the masters to copy from
};

/// AdamW with fp32 master weights. An fp32 parameter is its own master. The constructor allocates
/// all persistent memory. Not thread-safe.
class AdamW {
 public:
  /// Creates the state of all parameters of `store` that require gradients. Weights must be loaded
  /// before. `buckets`, of the same parameters, must outlive this; group 0 is used. If their shard
  /// does not cover all, this rank has moments and masters of its local ranges only and updates
  /// these.
  AdamW(const nn::ParameterStore& store, GradientBuckets& buckets, AdamWSettings settings);
  ~AdamW();
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  /// Prepares a step: clipping, and whether it is skipped. `loss`: fp32 scalar on the device
  /// without the loss scale; undefined: only the norm decides. `norm`: fp32 norm of the gradients
  /// of all ranks; undefined: that of `buckets`. Allocates all memory of a step, so a step that
  /// fails here can be retried: nothing has changed. As in torch.optim, a parameter without a
  /// gradient in this step keeps its value and moments and gets no weight decay. The norm is 0 if
  /// no parameter has a gradient.
  OptimizerUpdate prepare(const at::Tensor& loss, const at::Tensor& norm = {}) const;

  /// Applies a prepared step: updates weights and loss scale and resets the buckets. Allocates no
  /// tensor memory. A skipped step changes no weight, moment or step counter. REQUIRES: no gradient
  /// was added since prepare().
  void apply(const OptimizerUpdate& update, const LearningRates& rates);

  /// Calls prepare() and apply(). Returns the norm. REQUIRES: a shard that covers all.
  at::Tensor step(const LearningRates& rates);

  /// Returns the factor of the loss before the backward pass, an fp32 scalar; undefined without
  /// one.
  at::Tensor loss_scale() const;

  /// Returns the state by name, the optimizer's own tensors: `steps` (fp32 [parameters], step
  /// counters), the state of the loss scale, `first_moment.NAME`, `second_moment.NAME`, and for
  /// 16-bit weights `master.NAME`. Compressed moments are [blocks, 256] with a padded last block:
  /// bf16, or uint8 with fp32 `first_moment_absmax.NAME` and `second_moment_absmax.NAME` [blocks].
  /// With bf16 moments, `updates` counts calls of apply().
  ///
  /// With sharded state each rank returns its shards, named as in saved_state.h; the first rank
  /// also returns everything else.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

  /// Copies a saved state back. `master.NAME` may be present for fp32 weights, as their values.
  /// Throws UserError (kBadData) that names a missing or unexpected tensor, or a wrong shape or
  /// type.
  void load_state(const SavedOptimizerState& state, const std::string& source);

  /// Copies the matching part of the state of a run with other settings: moments and step counters
  /// of tensors with equal shape and type, all masters, and a dynamic loss scale. Other moments are
  /// reset. `store`: the model's parameters, whose order is that of the saved steps. Throws
  /// UserError (kBadData) if steps and moments do not belong together.
  MigratedState migrate_state(const nn::ParameterStore& store, const SavedOptimizerState& saved,
                              const std::string& source);

  const Shard& shard() const { return buckets_.shard(); }
  /// Returns the number of trained elements of all ranks.
  int64_t trained_elements() const;

  /// Returns false if apply() began and failed: weights and state are then a mixture of two steps.
  bool is_consistent() const { return is_consistent_; }

  /// Returns the fp32 values of all trained parameters by name, not copies: masters, or fp32
  /// weights. With sharded state, shards.
  std::vector<std::pair<std::string, at::Tensor>> masters() const;

 private:
  struct Entry;
  /// A tensor of the state, with its range in the flattened whole.
  struct StateTensor {
    std::string name;  ///< name of the whole
    at::Tensor values;
    int64_t first = 0, total = 0;
    bool is_sharded = false;  ///< among ranks
  };
  /// The tensors with compressed moments that share learning rate and weight decay.
  struct CompressedGroup {
    nn::Component component;
    bool has_weight_decay;
    std::vector<size_t> entries;
    std::unique_ptr<CompressedStates> states;
  };

  at::Tensor get_gradient(size_t i) const;
  std::string saved_name(const StateTensor& tensor) const;
  StateTensor make_master_tensor(const Entry& entry) const;
  std::vector<StateTensor> state_tensors() const;
  void make_compressed_groups(const at::TensorOptions& options);
  void add_groups(OptimizerUpdate& update) const;
  void add_chunks(OptimizerUpdate& update) const;
  bool has_custom_kernel() const;
  void add_custom_kernel_groups(OptimizerUpdate& update) const;
  void apply_custom_kernel(const OptimizerUpdate& update, const OptimizerUpdate::Group& group,
                           const LearningRates& rates, uint64_t rounding_seed) const;
  void refresh_weights();

  GradientBuckets& buckets_;
  AdamWSettings settings_;
  std::optional<LossScale> loss_scale_;
  std::vector<Entry> entries_;  // in the order of buckets_
  at::Tensor steps_;            // fp32 [entries]; each entry has a view
  std::unique_ptr<ChunkContext> chunk_context_;
  std::vector<CompressedGroup> compressed_;
  at::Tensor num_updates_;  // int64 scalar on the host
  bool is_consistent_ = true;
};

}  // namespace vlmtrain::engine
