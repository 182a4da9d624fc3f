#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "vlmtrain/engine/settings/training_settings.h"

namespace vlmtrain::nn {
struct Parameter;
class ParameterStore;
class ShardedBlock;
}  // namespace vlmtrain::nn

namespace vlmtrain::engine {

/// The offsets of the gradients of all trained parameters in flat buckets, as an immutable value.
/// Holds no tensor. The index i below counts the parameters that require gradients, in the store's
/// order.
///
/// Buckets are in the order in which a backward pass completes them, last parameters first. Each
/// bucket consists of one equal part per rank, so a reduce_scatter of a bucket needs no copy.
/// Tensors and parts are aligned to kShardAlignment elements; with a shard that covers all
/// elements, to 512 bytes of fp32.
///
/// Adjacent weights (nn::MergedLinear) get adjacent offsets. A parameter may lie in the parts of
/// several ranks, unless it is undivided. Undivided parameters are for optimizers that need whole
/// matrices. They have their own buckets, whose parts are filled evenly; adjacent weights stay in
/// one part. Ranks have nearly equal numbers of their elements, and rank 0 has the most.
///
/// A sharded block (nn::ShardedBlock) is one bucket with the layout of its trained weights. These
/// buckets come after all others.
class GradientLayout {
 public:
  /// A predicate that returns whether all elements of a parameter must be in the part of one rank.
  /// An empty function returns false for all.
  using UndividedPredicate = std::function<bool(const nn::Parameter&)>;

  /// A flat tensor of gradients that is reduced as one.
  struct Bucket {
    int64_t elements = 0;  ///< padding included; divisible by the number of ranks
    std::vector<size_t> parameter_indices{};
    const nn::ShardedBlock* block = nullptr;  ///< null unless the bucket is a sharded block
    bool is_on_host = false;                  ///< its parameters are in host memory, and so are the gradients
  };

  /// Lays out the parameters of `store` that require gradients. `shard` is the part of this rank. With
  /// Offload::kGradients, parameters in host memory have their own buckets.
  /// Throws InternalError if the rank is out of range or a parameter of a sharded block is
  /// undivided. REQUIRES: sharded blocks outlive this object and its copies.
  explicit GradientLayout(const nn::ParameterStore& store, Shard shard = {},
                          const UndividedPredicate& is_undivided = {}, Offload offload = Offload::kNone);

  /// Returns the number of parameters that require gradients.
  size_t size() const { return entries_.size(); }
  /// Returns the name of parameter i in the store.
  const std::string& name(size_t i) const { return entries_[i].name; }
  /// Returns the number of elements of parameter i.
  int64_t elements(size_t i) const { return entries_[i].elements; }
  const Shard& shard() const { return shard_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Returns the index of the bucket of parameter i.
  size_t bucket_index(size_t i) const { return entries_[i].bucket_index; }
  /// Returns the offset of parameter i in its bucket, in elements.
  int64_t offset(size_t i) const { return entries_[i].offset; }

  /// Returns the range of the flattened parameter i that is in this rank's part; its count is 0 if
  /// there is none.
  ElementRange get_local_range(size_t i) const;
  /// Returns the number of elements of one rank's part of a bucket.
  int64_t get_part_elements(size_t bucket) const { return buckets_[bucket].elements / shard_.count; }
  /// Returns the number of elements of each bucket that is not a sharded block, padding included.
  std::vector<int64_t> get_non_block_bucket_sizes() const;
  /// Returns whether parameter i is in a sharded block.
  bool is_in_sharded_block(size_t i) const { return buckets_[entries_[i].bucket_index].block != nullptr; }
  /// Returns whether the store's blocks are sharded, trained or not.
  bool has_sharded_blocks() const { return has_sharded_blocks_; }

 private:
  struct Entry {
    std::string name;
    int64_t elements = 0;
    size_t bucket_index = 0;
    int64_t offset = 0;
  };

  void add_block_buckets(const std::vector<const nn::Parameter*>& trained_parameters);

  Shard shard_;
  bool has_sharded_blocks_;
  std::vector<Entry> entries_;
  std::vector<Bucket> buckets_;
};

}  // namespace vlmtrain::engine
