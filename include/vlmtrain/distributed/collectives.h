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

/// Communication volume of one kind of collective.
struct Traffic {
  int64_t bytes = 0;  ///< full size of the tensors, all shards included
  int64_t calls = 0;
};

/// Collectives between the ranks of a run, over c10d backends: Gloo, NCCL, or a fake one. Tensors can
/// be sharded over groups of consecutive ranks; the ranks with the same index in each group are
/// replicas of a shard.
///
/// REQUIRES: all ranks make the same calls in the same order, each from one thread.
class Collectives {
 public:
  /// The backend for CPU tensors and strings, and the backend for device tensors, which may be null.
  struct Backends;
  /// Called when a collective fails, with its exception. Must throw the exception for the caller.
  using ErrorHandler = std::function<void(const std::exception& error)>;

  explicit Collectives(const Backends& backends, ErrorHandler on_error = {});
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  /// Returns the number of ranks of the run.
  int64_t world_size() const;
  /// Returns the number of ranks over which reduce_scatter_async() and all_gather_async() shard.
  int64_t group_size() const;

  /// Shards over a group of ranks instead of all. `group` connects its members, `replicas` the ranks
  /// with the same index in other groups.
  void set_shard_groups(Backends group, Backends replicas);
  /// Adds backends for device tensors. The last two are used only with shard groups.
  void connect_device(Backends world, Backends group, Backends replicas);

  /// Starts to sum the tensor over all ranks, in place. REQUIRES: contiguous, of the same size on all
  /// ranks, on the CPU or the connected device, and not accessed before wait_for_reductions().
  void all_reduce_async(const at::Tensor& tensor);
  /// Starts to sum the tensor over the group, in place; rank r of n receives the r-th of n equal
  /// shards, and the other shards become undefined. REQUIRES: as all_reduce_async(), one-dimensional,
  /// and a size divisible by group_size().
  void reduce_scatter_async(const at::Tensor& tensor);
  /// As all_reduce_async(), over the ranks of the group.
  void all_reduce_group_async(const at::Tensor& tensor);
  /// As all_reduce_async(), over the replicas of this rank's shard. Does nothing without groups.
  void all_reduce_replicas_async(const at::Tensor& tensor);
  /// Waits for the reductions so far. CPU tensors are complete on return; device tensors are complete
  /// for work on the current stream.
  void wait_for_reductions();

  /// Starts to send the r-th of n equal shards of each rank to the whole group, in place. Returns a
  /// ticket for wait_for_all_gather(). REQUIRES: as reduce_scatter_async(), and not accessed before
  /// wait_for_all_gather().
  [[nodiscard]] int64_t all_gather_async(const at::Tensor& tensor);
  /// The same with separate tensors: `output` becomes the `input` tensors of the group's ranks, in
  /// rank order.
  [[nodiscard]] int64_t all_gather_async(const at::Tensor& output, const at::Tensor& input);
  /// Waits for an all-gather as wait_for_reductions() does. REQUIRES: one call per ticket.
  void wait_for_all_gather(int64_t ticket);

  /// Returns whether the reductions and all-gathers that were waited for are also complete on the
  /// device. Polls until `timeout`. Returns false if a rank was lost in between.
  bool are_reductions_complete(std::chrono::milliseconds timeout);

  /// Returns the strings of all ranks, in rank order.
  std::vector<std::string> all_gather_strings(const std::string& text);

  /// Returns the time that this rank, or its device, has waited in wait_for_reductions() and
  /// wait_for_all_gather(), as far as it is known without blocking. The slowest rank waits least.
  double wait_seconds();

  /// Traffic of all-reduces, those of groups and replicas included.
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
