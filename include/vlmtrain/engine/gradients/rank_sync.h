#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "vlmtrain/engine/gradients/consensus.h"
#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/engine/gradients/gradient_layout.h"
#include "vlmtrain/nn/weights/parameters.h"

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

/// The all-gather of updated weights with sharded optimizer state (ZeRO stage 1). Trained weights
/// are in flat buckets with the layout of the gradient buckets, so one call per bucket gathers the
/// parts of all ranks.
///
/// The all-gather overlaps with the next forward pass: a block waits for its own weights just
/// before it reads them. Buckets are gathered in the order in which a forward pass reads them:
/// first parameters outside of blocks, such as embeddings, then block by block. Not thread-safe.
class ShardedOptimizerSync {
 public:
  /// Moves the trained weights of `store` into buckets, so that their tensors become views of the
  /// buckets. Registers itself with `store`, and its destructor unregisters it. Temporarily needs
  /// the memory of one more bucket. `layout` is that of the gradient buckets. REQUIRES: all weights
  /// have one dtype; `store` outlives this object.
  ShardedOptimizerSync(nn::ParameterStore& store, const GradientLayout& layout);
  ~ShardedOptimizerSync();
  ShardedOptimizerSync(const ShardedOptimizerSync&) = delete;
  ShardedOptimizerSync& operator=(const ShardedOptimizerSync&) = delete;

  /// Starts to gather the updated weights, after the previous gather is complete. All ranks call
  /// it. `consensus` must live until wait_for_weights().
  void all_gather_weights(const Consensus& consensus);
  /// Waits until all weights are gathered. Does nothing if they are.
  void wait_for_weights();

 private:
  void wait_for_parameters(size_t first_parameter, size_t end_parameter);

  nn::ParameterStore& store_;
  std::vector<at::Tensor> buckets_;           // in the order of the gather
  std::vector<size_t> num_required_buckets_;  // per parameter of the store: number of buckets that must have arrived
  const Consensus* consensus_ = nullptr;
  std::vector<AllGatherHandle> all_gather_handles_;  // of the last all_gather_weights(), by bucket
  size_t num_gathered_buckets_ = 0;
};

}  // namespace vlmtrain::engine
