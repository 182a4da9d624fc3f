#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "vlmtrain/engine/gradients/consensus.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// fp32 sums of a step's gradients over its micro-batches, for all parameters that require
/// gradients.
///
/// A hook on each parameter adds its gradient to the sum as soon as the backward pass has computed
/// it, and frees the gradient. The first gradient of a step is copied and later ones are added, so
/// nothing is zeroed between steps. Backward functions may also write into the sum directly
/// (nn::GradientSink). The constructor allocates all memory, because gradients that live across
/// micro-batches would lie between activations and fragment the device's memory.
///
/// The sums are in flat buckets in the order of a backward pass, last parameters first. Each group
/// of gradients has its own set of buckets, for gradients that must be kept separate (PCGrad).
///
/// With a shard that does not cover all elements, each bucket consists of one equal part per rank,
/// and this rank needs only its own part of the global sums. Tensors and parts are aligned to
/// kShardAlignment elements.
///
/// A sharded block (nn::ShardedBlock) is one bucket with the layout of its weights. The gradients
/// of a backward pass are collected until reduce_block(), then reduced over the ranks, and each
/// rank keeps its part.
///
/// Not thread-safe. Backward passes may run on the device's autograd thread, one at a time.
class GradientBuckets {
 public:
  /// Allocates the sums of all parameters of `store` that require gradients, in `groups` groups,
  /// and sets a hook on each parameter. `shard` is the part of the sums that this rank needs.
  /// REQUIRES: no other object has buckets for these parameters; `groups` is 1 if the shard does
  /// not cover all elements; sharded blocks outlive this object.
  explicit GradientBuckets(const nn::ParameterStore& store, int64_t groups = 1, Shard shard = {});
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Returns the number of groups.
  int64_t num_gradient_groups() const { return flat_sums_.size(0); }
  /// Returns the number of parameters that require gradients. The index i below follows the store's
  /// order.
  size_t size() const { return entries_.size(); }
  /// Returns the number of elements of parameter i.
  int64_t elements(size_t i) const { return entries_[i].parameter.numel(); }
  /// Returns the dtype (fp32) and the device of the sums.
  at::TensorOptions options() const { return flat_sums_.options(); }

  const Shard& shard() const { return shard_; }
  /// Returns the range of the flattened parameter i that is in this rank's part; its count is 0 if
  /// there is none.
  ElementRange get_local_range(size_t i) const;
  /// Returns whether parameter i is in a sharded block.
  bool is_in_sharded_block(size_t i) const { return buckets_[entries_[i].bucket_index].block != nullptr; }
  /// Returns the number of elements of each bucket that is not a sharded block, padding included.
  std::vector<int64_t> get_non_block_bucket_sizes() const;
  /// Returns the index of the bucket of parameter i.
  size_t bucket_index(size_t i) const { return entries_[i].bucket_index; }
  /// Returns the offset of parameter i in its bucket, in elements.
  int64_t offset(size_t i) const { return entries_[i].offset; }
  /// Returns this rank's part of each sharded block that has a sum in this step, as views fp32
  /// [part].
  std::vector<at::Tensor> get_block_shards() const;
  /// Returns this rank's part of each other bucket, as views fp32 [part].
  std::vector<at::Tensor> get_non_block_shards() const;

  /// Sets the group to which the next gradients are added; initially 0.
  void set_gradient_group(int64_t group);

  /// Returns whether parameter i has a gradient in this step.
  bool has_gradient(size_t i, int64_t group = 0) const;
  /// Returns the sum in the parameter's shape, not a copy. REQUIRES: has_gradient(i, group); the
  /// parameter is not in a sharded block.
  at::Tensor sum(size_t i, int64_t group = 0) const;
  /// Returns the sum of group 0 by the parameter's name; undefined without a gradient. Throws
  /// InternalError for an unknown name.
  at::Tensor sum(const std::string& name) const;

  /// Returns the elements get_local_range(i) of the flattened sum, not a copy. REQUIRES:
  /// has_gradient(i).
  at::Tensor get_local_gradient_sum(size_t i) const;

  /// Returns the norm of this rank's sums of group 0, an fp32 scalar; 0 if there are none.
  at::Tensor compute_local_norm() const;

  /// Replaces the sums of group 0 with Σ_g factors[g] · (sum of group g). Missing gradients count
  /// as zero. `factors` is fp32 [groups] on the device. REQUIRES: the shard covers all elements.
  void combine_gradient_groups(const at::Tensor& factors);

  /// Discards all gradients, including those of a failed backward pass. Launches no kernel.
  void reset();

  /// A hook that starts to reduce a bucket over the ranks in place. The bucket is a flat fp32
  /// tensor. The hook is called once per bucket and group in each step, on the thread of the
  /// backward pass or of flush(), in the same order on all ranks.
  using CommHook = std::function<void(const at::Tensor& bucket)>;
  /// Sets the hook. `wait_hook` waits for all reductions that the hook has started; it is required
  /// for sharded blocks.
  void register_comm_hook(CommHook hook, std::function<void()> wait_hook = {});
  /// Starts to reduce the gradients of a block after its backward pass. Called on all ranks, also
  /// on those that have skipped the block; missing gradients count as zero. Waits for the previous
  /// block's reduction. Does nothing for a block without trained weights.
  void reduce_block(const nn::ShardedBlock& block);
  /// Begins the last micro-batch of the step: from now on, each bucket is reduced as soon as its
  /// gradients and all earlier buckets are complete. With several groups or sharded blocks,
  /// reductions wait for flush().
  void begin_last_micro_batch();
  /// Starts to reduce the remaining buckets after the last backward pass. Parameters without a
  /// gradient contribute zeros, because other ranks may have one.
  void flush();

  /// Returns the indices (group · size() + i) of all sums that have a gradient on this rank, in
  /// ascending order.
  std::vector<int64_t> find_sum_indices_with_gradient() const;
  /// Marks sums with these indices as having a gradient, because another rank has one. REQUIRES:
  /// called after flush().
  void mark_sums_with_gradient(const std::vector<int64_t>& indices);

 private:
  struct ParameterEntry {
    std::string name;
    at::Tensor parameter;
    const nn::ShardedBlock* block = nullptr;
    size_t bucket_index = 0;
    int64_t offset = 0;                // in the bucket
    std::vector<at::Tensor> sums{};    // by group, views of flat_sums_
    std::vector<bool> has_gradient{};  // by group
    bool is_in_last_micro_batch = false;
  };
  struct Bucket {
    int64_t first = 0, elements = 0;  // in a row of flat_sums_
    std::vector<size_t> entries{};
    size_t num_pending_gradients = 0;         // gradients of the last micro-batch that are not complete
    const nn::ShardedBlock* block = nullptr;  // if set, `first` is an offset in block_shards_
    bool has_sum = false;                     // in this step; sharded blocks only
  };
  class GradientHook;
  static constexpr size_t kNoIndex = std::numeric_limits<size_t>::max();

  int64_t round_up_to_alignment(int64_t elements) const;
  void lay_out_buckets();
  void check_not_reduced(const ParameterEntry& entry) const;
  void accumulate_gradient(size_t i);
  void reduce_bucket(size_t bucket, int64_t group);
  bool has_all_gradients() const;
  std::vector<at::Tensor> compute_flat_norms() const;
  std::vector<at::Tensor> compute_tensor_norms() const;
  std::vector<at::Tensor> collect_sums() const;
  void zero_missing_gradients(const Bucket& bucket, int64_t group) const;
  void lay_out_block_buckets(const nn::ParameterStore& store);
  void accumulate_block_gradient(size_t i);
  void zero_unfilled_gradients(const Bucket& bucket, const at::Tensor& full_bucket) const;
  at::Tensor get_local_shard(const Bucket& bucket) const;
  void finish_block_reduction();

  Shard shard_;
  bool has_sharded_blocks_;
  std::vector<ParameterEntry> entries_;
  std::vector<Bucket> buckets_;
  at::Tensor flat_sums_;  // [groups, elements], bucket after bucket
  // For sharded blocks: this rank's parts, and two whole buckets. One is filled while the other is
  // reduced.
  at::Tensor block_shards_;
  std::array<at::Tensor, 2> block_buffers_;
  size_t filling_buffer_index_ = 0;             // index into block_buffers_
  size_t filling_bucket_index_ = kNoIndex;      // index into buckets_; kNoIndex: no bucket is being filled
  std::vector<size_t> filled_entry_indices_{};  // indices into entries_, of the bucket that is being filled
  size_t reducing_bucket_index_ = kNoIndex;     // index into buckets_; kNoIndex: no bucket is being reduced
  std::function<void()> wait_hook_;
  int64_t current_gradient_group_ = 0;
  CommHook comm_hook_;
  bool is_last_micro_batch_ = false;
  size_t num_reduced_buckets_ = 0;  // in this step
};

}  // namespace vlmtrain::engine
