#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace vlmtrain::engine {

/// How an attempt at a step, or a phase of it, ended.
enum class Verdict {
  kFine,
  kRedoSmaller,  ///< memory did not suffice
  kLeaveOut,     ///< nor for a sample alone
};

/// An all-gather that is under way.
using GatherTicket = int64_t;

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
  virtual Verdict worst(Verdict own) const { return own; }
  /// Whether any process says so: that it was asked to stop.
  virtual bool any(bool own) const { return own; }
  /// Term by term: what the loss of a step is divided by.
  virtual std::vector<double> sum(std::vector<double> own) const { return own; }
  /// Adds up in place, on the device and without waiting for it: gradients, and what a step sums up beside them.
  /// Untouched until finish().
  virtual void add_up(const at::Tensor& /*own*/) const {}
  /// The same of what only parts are needed of: of n equal ones, the r-th process has its r-th added up, and anything
  /// in the others (a reduce-scatter).
  virtual void add_up_parts(const at::Tensor& /*all*/) const {}
  /// Adds up in place over the processes that hold the same part in other groups.
  virtual void add_up_copies(const at::Tensor& /*own*/) const {}
  /// Adds up in place over the processes of the group.
  virtual void add_up_in_group(const at::Tensor& own) const { add_up(own); }
  /// What was to be added up is, for whoever reads it on the device.
  virtual void finish() const {}
  /// Each process's part, the r-th of n equal ones, reaches all others, in place and without waiting (an all-gather).
  /// `all` is not to be touched until finish_gather() was called for the ticket that comes back, on the same device.
  [[nodiscard]] virtual GatherTicket gather_parts(const at::Tensor& /*all*/) const { return {}; }
  /// The same of parts that are elsewhere: `all` becomes the `own` of the first process, then that of the second ....
  [[nodiscard]] virtual GatherTicket gather_into(const at::Tensor& all, const at::Tensor& own) const;
  virtual void finish_gather(GatherTicket /*ticket*/) const {}
  /// What each process says, in the order of their ranks.
  virtual std::vector<std::string> each(std::string own) const { return {std::move(own)}; }
  /// All that any process names, ascending: samples of the data set that are left out, parameters with a gradient.
  virtual std::vector<int64_t> together(std::vector<int64_t> own) const { return own; }
};

}  // namespace vlmtrain::engine
