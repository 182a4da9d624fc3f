#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "vlmtrain/engine/shard.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// fp32 sums of the gradients of a step, over its micro-batches, of all parameters that require gradients.
///
/// A hook on each parameter takes its gradient as soon as the backward pass has made it, and frees it: the first one of
/// a step is copied, the later ones are added, so that nothing has to be set to zero between steps. What makes a
/// gradient may write into the sum itself (nn::GradientSink). All memory is allocated by the constructor: gradients
/// that live from one micro-batch to the next would lie between the activations and fragment the device's memory.
///
/// The sums lie in flat buckets, in the order in which a backward pass makes them: the last parameters first. With
/// several groups there is a set of buckets for each, for gradients that are to be told apart (engine/pcgrad.h).
///
/// With a shard that is not all, each bucket consists of equal parts, one a rank, and this rank needs only its own part
/// of the sums of all ranks: tensors and parts begin where a block of kShardAlignment elements does.
///
/// Where the weights of blocks are in parts themselves (nn::ShardedBlock), so are the sums of their gradients: a
/// block's are its bucket, in the places of its weights. What a backward pass makes of them is held until the block is
/// done with (reduce_block), then added up over the ranks, and each keeps its part.
///
/// Not thread-safe; backward passes may run on the device's autograd thread, one after another.
class GradientBuckets {
 public:
  /// REQUIRES: at most one of a parameter at a time; one group with a shard that is not all.
  explicit GradientBuckets(const nn::ParameterStore& store, int64_t groups = 1, Shard shard = {});
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  int64_t groups() const { return flat_.size(0); }
  /// Parameters that require gradients; i below is their number in the store's order.
  size_t size() const { return entries_.size(); }
  int64_t elements(size_t i) const { return entries_[i].parameter.numel(); }
  at::TensorOptions options() const { return flat_.options(); }

  const Shard& shard() const { return shard_; }
  /// What of parameter i lies in this rank's part; of no elements where all of it lies in others.
  ElementRange local_range(size_t i) const;
  /// Whether parameter i is of a block whose weights are in parts.
  bool is_in_sharded_block(size_t i) const { return buckets_[entries_[i].bucket].block != nullptr; }
  /// The buckets of what is of no sharded block, one behind the other: elements of each.
  std::vector<int64_t> get_bucket_sizes() const;
  /// The bucket of parameter i, and where in it the parameter begins.
  size_t bucket(size_t i) const { return entries_[i].bucket; }
  int64_t offset(size_t i) const { return entries_[i].offset; }
  /// fp32 [part], views: this rank's part of each bucket of a sharded block that there was a sum of in this step.
  std::vector<at::Tensor> get_block_shards() const;
  /// The same of all other buckets, where the shard is not all.
  std::vector<at::Tensor> get_other_shards() const;

  /// Gradients are of this group from now on; before the first call, of group 0.
  void set_group(int64_t group);

  /// Whether there was a gradient in this step.
  bool has_gradient(size_t i, int64_t group = 0) const;
  /// In the parameter's shape; not a copy. REQUIRES: received.
  at::Tensor sum(size_t i, int64_t group = 0) const;
  /// Of group 0, by the parameter's name; undefined if there was no gradient.
  at::Tensor sum(const std::string& name) const;

  /// sum(), flattened, of the piece that is this rank's. REQUIRES: received.
  at::Tensor get_local_sum(size_t i) const;

  /// fp32 scalar: the norm of all sums of group 0 together, as far as they are this rank's; 0 where there are none.
  at::Tensor norm() const;

  /// The sums of group 0 become Σ_g factors[g] · those of group g, where a group that received nothing has zeros.
  /// `factors`: fp32 [groups], on the device.
  void combine(const at::Tensor& factors);

  /// Forgets what was received, also what a backward pass that failed has left behind. Launches nothing.
  void reset();

  /// What adds the sums of several processes up: gets each bucket of each step once, a flat fp32 tensor that it changes
  /// in place, on the thread of the backward pass. Buckets come in the same order in every process: that of the
  /// backward pass.
  using CommHook = std::function<void(const at::Tensor& bucket)>;
  /// `wait_hook`: what was handed over is there.
  void register_comm_hook(CommHook hook, std::function<void()> wait_hook = {});
  /// The backward pass of a micro-batch, of this process or of others, is done with the block: its gradients are
  /// handed over, zeros where there are none, meanwhile those of the block before are there. All processes call this
  /// in the same order. Of a block of which nothing is trained it does nothing.
  void reduce_block(const nn::ShardedBlock& block);
  /// The last micro-batch of the step begins: a bucket is handed over as soon as this backward pass has made all of its
  /// gradients and those before it have been. With several groups none is before flush().
  void begin_last_micro_batch();
  /// The step's backward passes are done: hands over the buckets that are left. Parameters without a gradient have
  /// zeros there: another process may have one.
  void flush();

  /// What was received: group · size() + i, ascending.
  std::vector<int64_t> find_received_indices() const;
  /// Of several processes: what another one received counts as received here. REQUIRES: after flush().
  void mark_received(const std::vector<int64_t>& indices);

 private:
  struct Entry {
    std::string name;
    at::Tensor parameter;
    const nn::ShardedBlock* block = nullptr;
    size_t bucket = 0;
    int64_t offset = 0;                // in the bucket
    std::vector<at::Tensor> sums{};    // by group: views of flat_
    std::vector<bool> has_gradient{};  // by group
    bool in_last_micro_batch = false;
  };
  struct Bucket {
    int64_t first = 0, elements = 0;  // in a row of flat_
    std::vector<size_t> entries{};
    size_t pending = 0;                       // in the last pass
    const nn::ShardedBlock* block = nullptr;  // then `first` is a place in parts_
    bool has_sum = false;                     // of this step, then
  };
  class GradientHook;
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();

  int64_t align_up(int64_t elements) const;
  void layout_buckets();
  void check_not_reduced(const Entry& entry) const;
  void accumulate(size_t i);
  void reduce_bucket(size_t bucket, int64_t group);
  bool has_all_gradients() const;
  std::vector<at::Tensor> compute_flat_norms() const;
  std::vector<at::Tensor> compute_tensor_norms() const;
  std::vector<at::Tensor> collect_sums() const;
  void zero_missing(const Bucket& bucket, int64_t group) const;
  void layout_block_buckets(const nn::ParameterStore& store);
  void accumulate_block(size_t i);
  void zero_unfilled(const Bucket& bucket, const at::Tensor& full_bucket) const;
  at::Tensor get_local_shard(const Bucket& bucket) const;
  void finish_block_reduction();

  Shard shard_;
  bool has_sharded_blocks_;
  std::vector<Entry> entries_;
  std::vector<Bucket> buckets_;
  at::Tensor flat_;  // [groups, elements]; buckets lie end to end
  // Of sharded blocks: this rank's parts, end to end; and two whole buckets, of which one is filled while the other
  // is added up over the ranks.
  at::Tensor block_shards_;
  std::array<at::Tensor, 2> block_buffers_;
  size_t filling_buffer_ = 0;             // of room_
  size_t filling_bucket_ = kNone;         // whose gradients it holds
  std::vector<size_t> filled_entries_{};  // of these, that are there
  size_t reducing_bucket_ = kNone;        // of the other one
  std::function<void()> wait_hook_;
  int64_t group_ = 0;
  CommHook comm_hook_;
  bool is_last_micro_batch_ = false;
  size_t num_reduced_buckets_ = 0;  // buckets of this step
};

}  // namespace vlmtrain::engine
