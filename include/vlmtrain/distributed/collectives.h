#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace vlmtrain::distributed {

/// Bytes and calls of some kind.
struct Traffic {
  int64_t bytes = 0;  ///< of all ranks' parts together
  int64_t calls = 0;
};

/// What ranks tell each other, over c10d's backends: Gloo, NCCL, or one that moves nothing. All ranks make the same
/// calls in the same order, each on one thread.
class Collectives {
 public:
  /// One for tensors of the host, and for words; one for those of the device, where that is another.
  struct Backends;
  /// Called where a call fails, with what it threw. Is to throw what the caller is told.
  using ErrorHandler = std::function<void(const std::exception& error)>;

  explicit Collectives(const Backends& backends, ErrorHandler on_error = {});
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  int64_t world_size() const;
  /// That share what reduce_scatter_async() and all_gather_async() are about.
  int64_t group_size() const;

  /// From now on parts are those of a group of ranks instead of all: `group` joins its members, `replicas` those that
  /// are at the same place in other groups.
  void set_shard_groups(Backends group, Backends replicas);
  /// From now on tensors of the device can be added up too; the last two, where there are groups.
  void connect_device(Backends world, Backends group, Backends replicas);

  /// Adds the values of all ranks up in place, meanwhile. REQUIRES: contiguous, of the same size in all, on the host or
  /// on the device that is connected; untouched until wait_for_reductions().
  void all_reduce_async(const at::Tensor& tensor);
  /// The same of the n ranks of a group and n equal parts, of which the r-th rank gets its r-th: a reduce-scatter in
  /// place, after which the others are anything. REQUIRES: as all_reduce_async(), and as many elements as n divides.
  void reduce_scatter_async(const at::Tensor& tensor);
  /// The same as all_reduce_async(), of the ranks of a group; of those at the same place of all groups.
  void all_reduce_group_async(const at::Tensor& tensor);
  void all_reduce_replicas_async(const at::Tensor& tensor);
  /// Sums on the host are there; those on the device are for whoever uses them on the current stream.
  void wait_for_reductions();

  /// The r-th of n equal parts of each rank reaches all others of its group, meanwhile: an all-gather in place.
  /// REQUIRES: as reduce_scatter_async(); untouched until wait_for_all_gather() was called for the ticket that comes
  /// back.
  [[nodiscard]] int64_t all_gather_async(const at::Tensor& tensor);
  /// The same of parts that are elsewhere: `all` becomes the `own` of the group's ranks, one behind the other.
  [[nodiscard]] int64_t all_gather_async(const at::Tensor& output, const at::Tensor& input);
  /// It is there, as with wait_for_reductions(). Once for each.
  void wait_for_all_gather(int64_t ticket);

  /// Whether what wait_for_reductions() was called for is there on the device too; waits for it up to `patience`. It
  /// never is where a rank was lost meanwhile.
  bool are_reductions_complete(std::chrono::milliseconds timeout);

  /// What each rank says, by rank.
  std::vector<std::string> all_gather_strings(const std::string& text);

  /// That this rank has waited in wait_for_reductions() and wait_for_all_gather() for what was not there yet, or its
  /// device has, as far as is known. Who is slowest waits least.
  double wait_seconds();

  /// Of sums of all (and of those of copies), of sums of parts and of gathered parts.
  const Traffic& all_reduce_traffic() const { return all_reduce_traffic_; }
  const Traffic& reduce_scatter_traffic() const { return reduce_scatter_traffic_; }
  const Traffic& all_gather_traffic() const { return all_gather_traffic_; }

 private:
  class Impl;
  template <class Operation>
  void run_guarded(const Operation& operation);
  void check_tensor(const at::Tensor& tensor) const;
  void check_shards(const at::Tensor& tensor) const;

  std::unique_ptr<Impl> impl_;
  ErrorHandler on_error_;
  Traffic all_reduce_traffic_, reduce_scatter_traffic_, all_gather_traffic_;
};

}  // namespace vlmtrain::distributed
