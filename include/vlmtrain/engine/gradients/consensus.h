#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/nn/weights/sharded_block.h"

namespace vlmtrain::engine {

using nn::ElementRange;
using nn::kShardAlignment;
using nn::Shard;

/// The state sharded among ranks (ZeRO; Rajbhandari et al. 2020, arXiv 1910.02054), in ascending
/// order of saved memory.
enum class Sharding {
  kNone,       ///< nothing
  kOptimizer,  ///< AdamW's moments and fp32 master weights: ZeRO stage 1
  kHybrid,     ///< also weights and gradients of blocks, among the ranks of a node; nodes are replicas
  kFull,       ///< the same among all ranks: ZeRO stage 3
};

/// Returns the name in configuration and reports.
constexpr const char* to_string(Sharding sharding) {
  switch (sharding) {
    case Sharding::kOptimizer:
      return "optimizer";
    case Sharding::kFull:
      return "full";
    case Sharding::kHybrid:
      return "hybrid";
    case Sharding::kNone:
      break;
  }
  return "none";
}

/// Returns whether the blocks' weights are sharded.
constexpr bool shards_blocks(Sharding sharding) {
  return sharding == Sharding::kFull || sharding == Sharding::kHybrid;
}

/// The outcome of an attempt at a step, in ascending order of severity.
enum class StepStatus {
  kOk,
  kRetrySmaller,  ///< out of memory: retry with smaller micro-batches
  kSkipSample,    ///< a single sample does not fit: skip it
};

/// A handle of an all-gather in progress.
using AllGatherHandle = int64_t;

/// The collectives of a step. This class is that of a single rank, where each is the identity. All
/// ranks make the same calls in the same order, and each call returns the same on all of them.
///
/// Skipped steps need no call: every rank sees them in norm and loss, which are global.
class Consensus {
 public:
  Consensus() = default;
  virtual ~Consensus() = default;
  Consensus(const Consensus&) = delete;
  Consensus& operator=(const Consensus&) = delete;

  /// Returns the most severe status of any rank.
  virtual StepStatus all_reduce_max(StepStatus value) const { return value; }
  /// Returns whether `value` is true on any rank.
  virtual bool any_rank(bool value) const { return value; }
  /// Returns the elementwise sum over ranks, such as the normalizers of a loss.
  virtual std::vector<double> sum_over_ranks(std::vector<double> value) const { return value; }
  /// Sums over all ranks in place, asynchronously on the device. The tensor must not be touched
  /// until wait_for_reductions().
  virtual void all_reduce_sum(const at::Tensor& /*value*/) const {}
  /// The same as a reduce-scatter: of n equal parts, only that of this rank is summed; the others
  /// are undefined.
  virtual void reduce_scatter(const at::Tensor& /*all*/) const {}
  /// Sums in place over the ranks that hold the same shard in other groups.
  virtual void all_reduce_replicas(const at::Tensor& /*value*/) const {}
  /// Sums in place over the ranks of the group.
  virtual void all_reduce_group(const at::Tensor& value) const { all_reduce_sum(value); }
  /// Makes the device wait for all reductions so far.
  virtual void wait_for_reductions() const {}
  /// Gathers the parts of all ranks in place, the r-th of n equal parts from rank r,
  /// asynchronously. `all` must not be touched until wait_for_all_gather() with the returned
  /// handle, on the same device.
  [[nodiscard]] virtual AllGatherHandle all_gather_async(const at::Tensor& /*all*/) const { return {}; }
  /// The same with separate parts: `all` becomes the concatenation of `value` of all ranks.
  [[nodiscard]] virtual AllGatherHandle all_gather_into_tensor(const at::Tensor& all, const at::Tensor& value) const {
    all.copy_(value);
    return {};
  }
  /// Makes the device wait for an all-gather.
  virtual void wait_for_all_gather(AllGatherHandle /*ticket*/) const {}
  /// Returns the strings of all ranks in order of rank.
  virtual std::vector<std::string> all_gather_strings(std::string value) const { return {std::move(value)}; }
  /// Returns the union over ranks, ascending, such as skipped samples or parameters with a
  /// gradient.
  virtual std::vector<int64_t> union_over_ranks(std::vector<int64_t> value) const { return value; }
};

}  // namespace vlmtrain::engine
