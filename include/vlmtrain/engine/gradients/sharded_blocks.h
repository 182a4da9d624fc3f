#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/engine/gradients/consensus.h"
#include "vlmtrain/engine/gradients/rank_sync.h"
#include "vlmtrain/memory/device_copy.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/nn/weights/sharded_block.h"

namespace vlmtrain::engine {

/// The unsharding of blocks during passes (ZeRO stage 3). Each block is copied from host memory if it is there,
/// and all-gathered, while the previous one computes, and resharded after it has run; at most two blocks are
/// unsharded. In a backward pass, the gradients of a sharded block are reduced after it has run.
///
/// A pass is a list of visits, each of which runs one block. All ranks walk the same list: the
/// vision tower's blocks as often as the rank with most images needs, then the text model's blocks,
/// then all blocks that need gradients in reverse. A rank may have nothing to compute in a visit,
/// because it has fewer images or micro-batches. It still takes part in the visit's collectives,
/// with zero gradients. Ranks exchange their needs before each pass. Not thread-safe.
class ShardedBlocks final : public nn::BlockUnsharder {
 public:
  /// Allocates memory for two blocks of the largest size. Registers itself with the store, and its
  /// destructor unregisters it. `store` and `reducer` must outlive this object.
  ShardedBlocks(nn::ParameterStore& store, GradientReducer& reducer);
  ~ShardedBlocks() override;

  /// Sets the collectives. Must be called before the first pass if blocks are sharded; `consensus` must
  /// outlive this object. No effect if they are whole: each rank then runs its own passes.
  void set_consensus(const Consensus& consensus) {
    if (!store_.shard().covers_all()) consensus_ = &consensus;
  }

  // Documented in nn::BlockUnsharder.
  void begin_pass(const nn::ForwardPassSpec& spec) override;
  void prepare_block(size_t first) override;
  void end_pass() override;
  void join_remaining_passes() override;
  void unshard_block(size_t first) override;

  /// Returns the memory of two unsharded blocks.
  int64_t bytes() const;

 private:
  static constexpr size_t kNoIndex = std::numeric_limits<size_t>::max();

  /// A sharded block and its state.
  struct Block {
    nn::BlockRange range;
    bool is_vision = false;
    bool is_in_backward = false;   ///< whether the backward pass runs it: it or an earlier parameter is trained
    size_t slot_index = kNoIndex;  ///< index into slots_ while unsharded
    bool is_gathered = false;
    std::array<AllGatherHandle, 2> all_gather_handles{};
  };
  /// One run of a block in a pass.
  struct BlockVisit {
    size_t block_index = 0;
    int64_t vision_pass = 0;  ///< for blocks of the vision tower; else 0
    bool is_backward = false;
  };

  std::vector<Block>::iterator find_block(size_t first);
  void exchange_pass_messages(const std::string& message);
  void plan_visits(const nn::ForwardPassSpec& spec);
  void advance_to_visit(size_t visit);
  void begin_block_use(size_t visit);
  void end_block_use(size_t visit);
  void start_unshard(Block& block, size_t slot_index);
  at::Tensor view_local_shard(const Block& block, nn::ShardedBlock::SectionKind kind) const;
  void start_all_gather(Block& block);
  void finish_unshard(Block& block);
  void reshard_block(Block& block);
  void reshard_all_blocks();

  nn::ParameterStore& store_;
  GradientReducer& reducer_;
  const Consensus single_rank_;
  const Consensus* consensus_ = nullptr;
  std::vector<Block> blocks_;  // in order of a forward pass
  std::array<at::Tensor, 2> slots_;
  std::array<std::optional<memory::SlotCopier>, 2> slot_copiers_;  // of blocks in host memory
  std::vector<BlockVisit> visits_;                                 // of the current pass, in order
  size_t current_visit_index_ = kNoIndex;                          // index into visits_; kNoIndex before the first
  bool is_in_pass_ = false;
  // Result of the last exchange: whether any rank is in a pass, and the block requested by
  // unshard_block().
  bool is_any_rank_active_ = false;
  std::optional<int64_t> requested_block_index_;
  int64_t num_local_vision_passes_ = 0;
};

}  // namespace vlmtrain::engine
