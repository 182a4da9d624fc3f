#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "vlmtrain/engine/gradients/consensus.h"
#include "vlmtrain/engine/gradients/gradient_buckets.h"

namespace vlmtrain::engine {

/// The reduction of gradient sums over the ranks, bucket by bucket.
///
/// In the last micro-batch of a step, each bucket is reduced as soon as its gradients and all
/// earlier buckets are complete, so reductions overlap with the backward pass. All ranks reduce the
/// same buckets in the same order. Without a comm hook (a single rank), nothing is reduced.
///
/// The gradients of a sharded block in a backward pass are collected in one of two whole buckets
/// until reduce_block(), while the other one is reduced. Each rank adds its part of the result to
/// its part of the sums.
///
/// Not thread-safe. Backward passes may run on the device's autograd thread, one at a time.
class GradientReducer final : private GradientObserver {
 public:
  /// Allocates memory for two whole buckets of the largest sharded block, if blocks are trained.
  /// Registers itself with `buckets`, and its destructor unregisters it. REQUIRES: `buckets` has no
  /// other observer and outlives this object.
  explicit GradientReducer(GradientBuckets& buckets);
  ~GradientReducer() override;

  /// A hook that starts to reduce a bucket over the ranks in place. The bucket is a flat fp32
  /// tensor. The hook is called once per bucket and group in each step, on the thread of the
  /// backward pass or of flush(), in the same order on all ranks.
  using CommHook = std::function<void(const at::Tensor& bucket)>;
  /// Sets the hook. `wait_hook` waits for all reductions that the hook has started; it is required
  /// for sharded blocks.
  void register_comm_hook(CommHook hook, std::function<void()> wait_hook = {});

  /// Begins the last micro-batch of the step: from now on, each bucket is reduced as soon as its
  /// gradients and all earlier buckets are complete. With several groups or sharded blocks,
  /// reductions wait for flush().
  void begin_last_micro_batch();
  /// Starts to reduce the gradients of a block after its backward pass. Called on all ranks, also
  /// on those that have skipped the block; missing gradients count as zero. Waits for the previous
  /// block's reduction. Does nothing for a block without trained weights.
  void reduce_block(const nn::ShardedBlock& block);
  /// Starts to reduce the remaining buckets after the last backward pass. Parameters without a
  /// gradient contribute zeros, because other ranks may have one.
  void flush();

  /// Marks sums as having a gradient if another rank has one. Called on all ranks after flush().
  void mark_gradients_of_all_ranks(const Consensus& consensus);
  /// Returns this rank's part of each bucket of group 0, as views fp32 [part]: first those of
  /// sharded blocks that have a sum in this step, then all others. REQUIRES: called after flush().
  std::vector<at::Tensor> get_local_shards() const;

 private:
  using Bucket = GradientLayout::Bucket;

  void check_accepts_gradient(size_t i) const override;
  void on_gradient_complete(size_t i) override;
  void add_block_gradient(size_t i, const at::Tensor& gradient) override;
  void on_reset() override;

  const GradientLayout& layout() const { return buckets_.layout(); }
  void zero_unfilled_gradients(const Bucket& bucket, const at::Tensor& full_bucket) const;
  void finish_block_reduction();

  GradientBuckets& buckets_;
  CommHook comm_hook_;
  std::function<void()> wait_hook_;

  bool is_last_micro_batch_ = false;
  std::vector<bool> is_in_last_micro_batch_;   // by parameter: whether its gradients are complete
  std::vector<size_t> num_pending_gradients_;  // by bucket: gradients of the last micro-batch that are not complete
  size_t num_reduced_buckets_ = 0;             // in this step

  // Sharded blocks. One buffer is filled while the other is reduced.
  std::array<at::Tensor, 2> block_buffers_;  // fp32, whole buckets
  std::vector<bool> has_block_sum_;          // by bucket: whether this rank's part has a sum in this step
  size_t filling_buffer_index_ = 0;          // index into block_buffers_
  std::optional<size_t> filling_bucket_;     // the bucket that is being filled
  std::vector<size_t> filled_parameters_;    // indices of its parameters that have a gradient
  std::optional<size_t> reducing_bucket_;    // the bucket that is being reduced
};

}  // namespace vlmtrain::engine
