#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/engine/settings/training_settings.h"

namespace vlmtrain::engine {

/// The outcome of an attempt at a step, in ascending order of severity.
enum class StepStatus {
  kOk,
  kRetrySmaller,  ///< out of memory: retry with smaller micro-batches
  kSkipSample,    ///< a single sample does not fit: skip it
};

/// A handle of an all-gather in progress, for Consensus::wait_for_all_gather().
using AllGatherHandle = int64_t;

/// The collectives of a step. This class implements them for a single rank, where each is the
/// identity. All ranks make the same calls in the same order, from one thread. Each call that
/// returns a value returns the same value on all ranks. distributed::RankConsensus implements them
/// for several ranks; its functions throw UserError if a rank fails.
///
/// Whether a step is skipped needs no collective, because it follows from the global norm and loss.
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
  /// Starts to sum a contiguous tensor over all ranks, in place. The tensor must not be accessed
  /// until wait_for_reductions(). This also holds for the next three functions.
  virtual void all_reduce_sum_async(const at::Tensor& /*value*/) const {}
  /// Starts to sum a one-dimensional tensor over the ranks of the group. Rank r of n receives the
  /// r-th of n equal shards, in place; the values of the other shards become undefined.
  virtual void reduce_scatter_async(const at::Tensor& /*all*/) const {}
  /// Starts to sum over the ranks that have the same shard in other groups, in place.
  virtual void all_reduce_replicas_async(const at::Tensor& /*value*/) const {}
  /// Starts to sum over the ranks of the group, in place.
  virtual void all_reduce_group_async(const at::Tensor& value) const { all_reduce_sum_async(value); }
  /// Makes the device's current stream wait for all reductions so far; CPU tensors are complete on
  /// return.
  virtual void wait_for_reductions() const {}
  /// Starts to gather the shards of the group's ranks in place: rank r of n contributes the r-th of
  /// n equal shards of the one-dimensional tensor `all`. `all` must not be accessed until
  /// wait_for_all_gather() with the returned handle.
  [[nodiscard]] virtual AllGatherHandle all_gather_async(const at::Tensor& /*all*/) const { return {}; }
  /// The same with separate tensors: `all` becomes the concatenation of `value` of the group's
  /// ranks.
  [[nodiscard]] virtual AllGatherHandle all_gather_into_tensor_async(const at::Tensor& all,
                                                                     const at::Tensor& value) const {
    all.copy_(value);
    return {};
  }
  /// Waits for an all-gather as wait_for_reductions() does. REQUIRES: called once per handle.
  virtual void wait_for_all_gather(AllGatherHandle /*handle*/) const {}
  /// Returns the strings of all ranks in rank order.
  virtual std::vector<std::string> all_gather_strings(std::string value) const { return {std::move(value)}; }
  /// Returns the union of the values of all ranks, in ascending order: for example, indices of
  /// skipped samples or of parameters with a gradient.
  virtual std::vector<int64_t> union_over_ranks(std::vector<int64_t> value) const { return value; }
};

}  // namespace vlmtrain::engine
