#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace vlmtrain::engine {

/// How an attempt at a step, or a phase of it, ended.
enum class StepStatus {
  kOk,
  kRetrySmaller,  ///< memory did not suffice
  kSkipSample,    ///< nor for a sample alone
};

/// An all-gather that is under way.
using AllGatherHandle = int64_t;

/// What the processes of a run agree on. This one is of a run of one process, which always does. Where there are
/// several, all make the same calls in the same order, and each call gives all of them the same.
///
/// That a step is skipped needs no call: each process finds it in the norm and the loss, which are those of all.
class Consensus {
 public:
  Consensus() = default;
  virtual ~Consensus() = default;
  Consensus(const Consensus&) = delete;
  Consensus& operator=(const Consensus&) = delete;

  /// The worst of all.
  virtual StepStatus all_reduce_max(StepStatus value) const { return value; }
  /// Whether any process says so: that it was asked to stop.
  virtual bool any_rank(bool value) const { return value; }
  /// Term by term: what the loss of a step is divided by.
  virtual std::vector<double> sum_over_ranks(std::vector<double> value) const { return value; }
  /// Adds up in place, on the device and without waiting for it: gradients, and what a step sums up beside them.
  /// Untouched until wait_for_reductions().
  virtual void all_reduce_sum(const at::Tensor& /*own*/) const {}
  /// The same of what only parts are needed of: of n equal ones, the r-th process has its r-th added up, and anything
  /// in the others (a reduce-scatter).
  virtual void reduce_scatter(const at::Tensor& /*all*/) const {}
  /// Adds up in place over the processes that hold the same part in other groups.
  virtual void all_reduce_replicas(const at::Tensor& /*own*/) const {}
  /// Adds up in place over the processes of the group.
  virtual void all_reduce_group(const at::Tensor& value) const { all_reduce_sum(value); }
  /// What was to be added up is, for whoever reads it on the device.
  virtual void wait_for_reductions() const {}
  /// Each process's part, the r-th of n equal ones, reaches all others, in place and without waiting (an all-gather).
  /// `all` is not to be touched until wait_for_all_gather() was called for the ticket that comes back, on the same
  /// device.
  [[nodiscard]] virtual AllGatherHandle all_gather_async(const at::Tensor& /*all*/) const { return {}; }
  /// The same of parts that are elsewhere: `all` becomes the `value` of the first process, then that of the second ....
  [[nodiscard]] virtual AllGatherHandle all_gather_into_tensor(const at::Tensor& all, const at::Tensor& value) const;
  virtual void wait_for_all_gather(AllGatherHandle /*ticket*/) const {}
  /// What each process says, in the order of their ranks.
  virtual std::vector<std::string> all_gather_strings(std::string value) const { return {std::move(value)}; }
  /// All that any process names, ascending: samples of the data set that are left out, parameters with a gradient.
  virtual std::vector<int64_t> union_over_ranks(std::vector<int64_t> value) const { return value; }
};

}  // namespace vlmtrain::engine
