#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/engine/consensus.h"
#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/nn/block_weights.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// Brings the blocks of which each rank holds a part together just before they run, the next one meanwhile, and lets
/// them go behind it: never more than two are there. In a backward pass a block's gradients are handed over when it is
/// done with.
///
/// All ranks walk along the same list of visits: for each pass, of the vision tower's blocks as often as the rank with
/// most pictures needs, of the text model's, and of all that have anything to learn once more backwards. What a rank
/// has no use for (it has no pictures, or fewer micro-batches) it brings together with the others, and hands zeros
/// over; it computes nothing. Before each pass the ranks tell each other what they need.
class ShardedBlocks final : public nn::BlockUnsharder {
 public:
  /// Takes the memory of the two largest blocks. Both must outlive it. The store is told that this brings its blocks,
  /// until it is gone.
  ShardedBlocks(nn::ParameterStore& store, GradientBuckets& buckets);
  ~ShardedBlocks() override;

  /// Before the first pass. Must outlive it.
  void connect(const Consensus& consensus) { consensus_ = &consensus; }

  void begin_pass(const nn::PassSpec& spec) override;
  void prepare_block(size_t first) override;
  void end_pass() override;
  void join_remaining_passes() override;
  void unshard_block(size_t first) override;

  /// Of what two blocks at most take.
  int64_t bytes() const;

 private:
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();

  /// A block that some pass runs, with weights in parts.
  struct Block {
    nn::BlockRange range;
    bool is_vision = false;
    bool is_in_backward = false;  ///< anything is trained in it or before it
    size_t slot = kNone;          ///< where it is, or comes to be
    bool is_gathered = false;
    std::array<AllGatherHandle, 2> handles{};
  };
  struct Visit {
    size_t block = 0;
    int64_t vision_pass = 0;  ///< of the tower's blocks; 0 for others
    bool is_backward = false;
  };

  std::vector<Block>::iterator find_block(size_t first);
  void synchronize_pass(const std::string& message);
  void plan_visits(const nn::PassSpec& spec);
  void advance(size_t visit);
  void enter_visit(size_t visit);
  void leave_visit(size_t visit);
  void start_unshard(Block& block, size_t slot);
  void finish_unshard(Block& block);
  void reshard_block(Block& block);
  void reshard_all();

  nn::ParameterStore& store_;
  GradientBuckets& buckets_;
  const Consensus* consensus_ = nullptr;
  std::vector<Block> blocks_;  // in the order of a forward pass
  std::array<at::Tensor, 2> slots_;
  std::vector<Visit> visits_;     // of the pass that goes on
  size_t current_visit_ = kNone;  // of these; kNone before the first
  bool is_in_pass_ = false;
  // Of what was agreed on last: whether any process does anything, and which block is read.
  bool is_any_rank_active_ = false;
  std::optional<int64_t> requested_block_;
  int64_t local_vision_passes_ = 0;
};

}  // namespace vlmtrain::engine
