#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/engine/gradients/gradient_layout.h"
#include "vlmtrain/memory/host_arena.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// An interface that follows the gradients of a backward pass. Its functions are called on the
/// thread of the backward pass; i is an index of GradientLayout.
class GradientObserver {
 public:
  GradientObserver() = default;
  virtual ~GradientObserver() = default;
  GradientObserver(const GradientObserver&) = delete;
  GradientObserver& operator=(const GradientObserver&) = delete;

  /// Throws InternalError if the sum of parameter i may not change any more in this step. Called
  /// before a gradient is added to the sum.
  virtual void check_accepts_gradient(size_t i) const = 0;
  /// Called after all gradients of a backward pass for parameter i have been added to its sum. Not
  /// called for parameters of sharded blocks.
  virtual void on_gradient_complete(size_t i) = 0;
  /// Receives the gradient of parameter i of a sharded block, which has no whole sum on this rank.
  virtual void add_block_gradient(size_t i, const at::Tensor& gradient) = 0;
  /// Called when all gradients of the step are discarded.
  virtual void on_reset() = 0;
};

/// fp32 sums of a step's gradients over its micro-batches, for all parameters that require
/// gradients.
///
/// A hook on each parameter adds its gradient to the sum as soon as the backward pass has computed
/// it, and frees the gradient. The first gradient of a step is copied and later ones are added, so
/// nothing is zeroed between steps. Backward functions may also write into the sum directly
/// (nn::GradientSink). The constructor allocates all memory, because gradients that live across
/// micro-batches would lie between activations and fragment the device's memory.
///
/// The sums are in flat buckets (GradientLayout). Each group of gradients has its own set of
/// buckets, for gradients that must be kept separate (PCGrad). With a shard that does not cover all
/// elements, this rank needs only its own part of the global sums. Of a sharded block it has only
/// that part; the observer (GradientReducer) collects the block's gradients and reduces them.
///
/// Not thread-safe. Backward passes may run on the device's autograd thread, one at a time.
class GradientBuckets {
 public:
  /// Allocates the sums of all parameters of `store` that require gradients, in `groups` groups, with
  /// Offload::kGradients those of weights in host memory there, and sets a hook on each parameter. `shard` is the part
  /// of the sums that this rank needs; `is_undivided` is an argument of GradientLayout. REQUIRES: no other object has
  /// buckets for these parameters; `groups` is 1 if the shard does not cover all elements; sharded blocks outlive this
  /// object.
  explicit GradientBuckets(const nn::ParameterStore& store, int64_t groups = 1, Shard shard = {},
                           const GradientLayout::UndividedPredicate& is_undivided = {},
                           Offload offload = Offload::kNone);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  const GradientLayout& layout() const { return layout_; }
  // Documented in GradientLayout.
  size_t size() const { return layout_.size(); }
  int64_t elements(size_t i) const { return layout_.elements(i); }
  const Shard& shard() const { return layout_.shard(); }
  ElementRange get_local_range(size_t i) const { return layout_.get_local_range(i); }

  /// Returns the number of groups.
  int64_t num_gradient_groups() const { return flat_sums_.size(0); }
  /// Returns the dtype (fp32) and the device of the sums.
  at::TensorOptions options() const { return flat_sums_.options(); }
  /// Returns the bytes of sums in host memory. Each micro-batch reads and writes them, the first one only
  /// writes, and the norm and the update read them.
  int64_t host_bytes() const { return host_arena_.bytes(); }
  /// Sets the observer, not owned; null removes it. Trained parameters in sharded blocks require
  /// one.
  void set_observer(GradientObserver* observer) { observer_ = observer; }
  /// Sets the group to which the next gradients are added; initially 0.
  void set_gradient_group(int64_t group);

  /// Returns whether parameter i has a gradient in this step.
  bool has_gradient(size_t i, int64_t group = 0) const;
  /// Makes has_gradient(i, group) return true. Called after the sum has been written.
  void mark_gradient(size_t i, int64_t group);
  /// Returns the sum in the parameter's shape, not a copy. REQUIRES: has_gradient(i, group); the
  /// parameter is not in a sharded block.
  at::Tensor sum(size_t i, int64_t group = 0) const;
  /// Returns the sum of group 0 by the parameter's name; undefined without a gradient. Throws
  /// InternalError for an unknown name.
  at::Tensor sum(const std::string& name) const;
  /// Returns the elements get_local_range(i) of the flattened sum, not a copy. REQUIRES:
  /// has_gradient(i).
  at::Tensor get_local_gradient_sum(size_t i) const;

  /// Returns this rank's part of a bucket of group 0, as a view fp32 [part].
  at::Tensor get_local_shard(size_t bucket) const;
  /// Zeroes the sums of a bucket that have no gradient. Returns the whole bucket as a view, fp32
  /// [elements]. REQUIRES: the bucket is not a sharded block.
  at::Tensor fill_missing_gradients(size_t bucket, int64_t group) const;

  /// Returns the norm of this rank's sums of group 0, an fp32 scalar; 0 if there are none.
  at::Tensor compute_local_norm() const;
  /// Replaces the sums of group 0 with Σ_g factors[g] · (sum of group g). Missing gradients count
  /// as zero. `factors` is fp32 [groups] on the device. REQUIRES: the shard covers all elements.
  void combine_gradient_groups(const at::Tensor& factors);
  /// Discards all gradients, including those of a failed backward pass. Launches no kernel.
  void reset();

 private:
  struct ParameterEntry {
    at::Tensor parameter;
    std::vector<at::Tensor> sums{};    // by group, views of flat_sums_ or host_sums_; empty in a sharded block
    std::vector<bool> has_gradient{};  // by group
  };
  class GradientHook;

  /// Returns the sums of a group in the memory that holds the bucket, [elements of all its buckets].
  at::Tensor get_group_sums(bool is_on_host, int64_t group) const {
    return (is_on_host ? host_sums_ : flat_sums_).select(0, group);
  }
  at::Tensor get_bucket_sums(size_t bucket, int64_t group) const;
  void accumulate_gradient(size_t i);

  GradientLayout layout_;
  std::vector<ParameterEntry> entries_;
  std::vector<int64_t> bucket_offsets_;  // by bucket, in a row of flat_sums_ or host_sums_, or in block_shards_
  at::Tensor flat_sums_;                 // [groups, elements], bucket after bucket
  memory::HostArena host_arena_;
  at::Tensor host_sums_;     // the same for buckets in host memory, as the device sees it
  at::Tensor block_shards_;  // this rank's parts of the buckets that are sharded blocks; may be in host memory, too
  GradientObserver* observer_ = nullptr;
  int64_t current_gradient_group_ = 0;
};

}  // namespace vlmtrain::engine
