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
#include "vlmtrain/engine/optimizer_states.h"
#include "vlmtrain/kernels/adamw.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// The learning rate of each component in one step.
struct LearningRates {
  double vision_tower = 0;
  double projector = 0;
  double language_model = 0;
  double masks = 0;  ///< of what encodes pictures for masks and decodes masks

  double get(nn::Component component) const;
};

struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;   ///< decoupled (Loshchilov and Hutter 2017, arXiv 1711.05101); matrices only
  double max_grad_norm = 1.0;  ///< 0: no clipping
  std::optional<LossScaleSettings> loss_scale = std::nullopt;
  OptimizerStates states = OptimizerStates::kFp32;
  uint64_t seed = 0;  ///< of the stochastic rounding of bf16 states
};

/// Of the trained tensors of a run that goes on with other settings.
struct MigratedState {
  int64_t migrated = 0;  ///< whose moments go on
  int64_t reset = 0;     ///< whose moments start at zero
};

class CompressedStates;
struct Chunk;
struct ChunkContext;

/// An optimizer step of which all is computed that takes memory, and nothing done yet.
struct OptimizerUpdate {
  /// Tensors that one call of the fused kernel moves.
  struct Group {
    nn::Component component = nn::Component::kUnused;  ///< whose learning rate they have
    bool has_weight_decay = false;
    std::vector<at::Tensor> masters{}, gradients{}, first_moments{}, second_moments{}, steps{};
    std::vector<kernels::AdamWParameter> tensors{};  ///< with our own kernel: all of it, and nothing else is set
    CompressedStates* states = nullptr;  ///< where moments are compressed: views of the room that they are expanded in
    std::shared_ptr<const Chunk> chunk{};  ///< what of them
  };

  at::Tensor grad_norm;     ///< fp32 scalar, before clipping and without the loss scale
  at::Tensor skipped;       ///< fp32 scalar: 1 where loss or norm is not finite, so that apply() moves nothing; else 0
  at::Tensor loss_scale;    ///< fp32 scalar, of this step; undefined without one
  at::Tensor divisor;       ///< fp32 scalar, of the summed gradients: clipping and loss scale; may be undefined
  at::Tensor skipped_flag;  ///< bool; defined with compressed moments that ATen's operations move
  std::vector<Group> groups;
  std::vector<at::Tensor> steps, increments;  ///< of all that move; the increments are one and the same scalar
  std::vector<at::Tensor> weights, masters;   ///< 16-bit weights to be refreshed, and where from
};

/// AdamW on fp32 master weights. With fp32 weights the parameter is its own master. All memory that lives on is
/// allocated by the constructor. Not thread-safe.
class AdamW {
 public:
  /// Takes the parameters of `store` that require gradients, as they are: weights must be loaded before.
  /// `buckets`: of the same parameters; they must outlive this, and group 0 is what a step is made of. Where their
  /// shard is not all, this rank has moments and masters of its pieces only, and moves these.
  AdamW(const nn::ParameterStore& store, GradientBuckets& buckets, AdamWSettings settings);
  ~AdamW();
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  /// The first half of a step: how gradients are clipped, and whether the step is skipped. `loss` is the step's, an
  /// fp32 scalar on the device, without the loss scale; where it is undefined, only the norm decides. `norm`:
  /// that of all ranks' parts together, fp32; where it is undefined, that of this rank's, which are all. All memory of
  /// a step is allocated here, so that a step that runs out of it can be done again: nothing has changed. As in
  /// torch.optim, a parameter that got no gradient in this step (the vision tower's in a step of text only) will stay
  /// as it is, its moments and its weight decay included; the norm is 0 where none got one.
  OptimizerUpdate prepare(const at::Tensor& loss, const at::Tensor& norm = {}) const;

  /// The second half: moves the weights, drops the sums and updates the loss scale. Allocates no memory for
  /// tensors, on device or host. A skipped step changes no weight, no moment and no count of steps.
  /// REQUIRES: no gradient was added since prepare().
  void apply(const OptimizerUpdate& update, const LearningRates& rates);

  /// Both halves. Returns the norm. REQUIRES: a shard that is all.
  at::Tensor step(const LearningRates& rates);

  /// fp32 scalar by which the loss is to be multiplied before the backward pass; undefined without one.
  at::Tensor loss_scale() const;

  /// Everything a resumed run needs, by name: `steps` (fp32 [parameters], steps done by each), the loss scale's state,
  /// and `first_moment.NAME`, `second_moment.NAME`, `master.NAME` (the last only with 16-bit weights). Compressed
  /// moments are [blocks, 256], the last block filled up: bf16, or uint8 with fp32 `first_moment_absmax.NAME` and
  /// `second_moment_absmax.NAME` [blocks]. With bf16 states `updates` counts calls of apply(). The tensors are the
  /// optimizer's own, not copies.
  ///
  /// Of several ranks that share moments and masters, each has pieces of these, by their names in
  /// engine/saved_pieces.h; the first rank has all else.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

  /// Copies a saved state back. `master.NAME` may be there for fp32 weights too: their values then. Throws UserError
  /// (kBadData) naming what is missing, unexpected or of another shape or type.
  void load_state(const SavedOptimizerState& state, const std::string& source);

  /// Takes of the state of a run whose settings have changed since what fits: moments and count of steps of each
  /// tensor that has them in this shape and type, while others start anew; every master that is there; a loss scale
  /// that moves. `store`: the model's parameters, since saved steps are in their order. Throws UserError (kBadData)
  /// where these steps are not those of the moments.
  MigratedState migrate_state(const nn::ParameterStore& store, const SavedOptimizerState& saved,
                              const std::string& source);

  const Shard& shard() const { return buckets_.shard(); }
  int64_t trained_elements() const;

  /// False where apply() began and did not end: weights and states are then partly those of one step and partly of the
  /// next.
  bool is_consistent() const { return is_consistent_; }

  /// The fp32 values of all that is trained, by the parameter's name: master weights, or the weights themselves where
  /// they are fp32. Not copies. Of several ranks that share them, pieces.
  std::vector<std::pair<std::string, at::Tensor>> masters() const;

 private:
  struct Entry;
  /// A tensor of the state, and what of the whole it is: elements of the flattened tensor.
  struct StateTensor {
    std::string name;  ///< of the whole
    at::Tensor values;
    int64_t first = 0, total = 0;
    bool is_sharded = false;  ///< among ranks
  };
  /// The tensors that have a learning rate and a weight decay in common, and compressed moments.
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
  std::vector<Entry> entries_;  // as in sums_
  at::Tensor steps_;            // fp32 [entries]; each entry holds a view of its own
  std::unique_ptr<ChunkContext> chunk_context_;
  std::vector<CompressedGroup> compressed_;
  at::Tensor num_updates_;  // int64 scalar on the host
  bool is_consistent_ = true;
};

}  // namespace vlmtrain::engine
