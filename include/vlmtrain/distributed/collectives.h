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

/// Communication volume of one kind of collective, counted on this rank since construction.
struct CollectiveTraffic {
  int64_t bytes = 0;  ///< sum of the tensors' full sizes, all shards included
  int64_t num_calls = 0;
};

/// Collectives between the ranks of a run, over c10d backends: Gloo, NCCL, or a fake one. Tensors
/// can be sharded over groups of consecutive ranks. The ranks with the same index in different
/// groups have the same shard; they are its replicas.
///
/// REQUIRES: all ranks make the same calls in the same order, each from one thread.
class Collectives {
 public:
  /// The backends of a set of ranks (distributed/backends.h): one for CPU tensors and strings, and
  /// one for device tensors, which may be null.
  struct Backends;
  /// Called with the exception of a failed collective. Must throw the exception that the caller of
  /// the collective is to get. If it returns, the original exception is thrown.
  using ErrorHandler = std::function<void(const std::exception& error)>;

  /// Shards over all ranks until set_shard_groups(). Without `on_error`, failed collectives throw
  /// c10d's exceptions.
  explicit Collectives(const Backends& backends, ErrorHandler on_error = {});
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  /// Returns the number of ranks of the run.
  int64_t world_size() const;
  /// Returns the number of ranks over which reduce_scatter_async() and all_gather_async() shard.
  int64_t shard_group_size() const;

  /// Shards over a group of ranks instead of over all ranks. `group` connects the group's members;
  /// `replicas` connects this rank with the ranks of the same index in other groups.
  void set_shard_groups(Backends group, Backends replicas);
  /// Adds the backends for device tensors. `group` and `replicas` are empty without shard groups.
  void set_device_backends(Backends world, Backends group, Backends replicas);

  /// Starts to sum the tensor over all ranks, in place. REQUIRES: the tensor is contiguous, has the
  /// same size on all ranks, is on the CPU or the connected device, and is not accessed before
  /// wait_for_reductions().
  void all_reduce_async(const at::Tensor& tensor);
  /// Starts to sum the tensor over the group, in place. Rank r of n receives the r-th of n equal
  /// shards; the values of the other shards become undefined. REQUIRES: as all_reduce_async(); the
  /// tensor is one-dimensional, and its size is divisible by shard_group_size().
  void reduce_scatter_async(const at::Tensor& tensor);
  /// As all_reduce_async(), over the ranks of the group.
  void all_reduce_group_async(const at::Tensor& tensor);
  /// As all_reduce_async(), over the replicas of this rank's shard. Does nothing without groups.
  void all_reduce_replicas_async(const at::Tensor& tensor);
  /// Waits for the reductions so far. CPU tensors are complete on return; device tensors are
  /// complete for work on the current stream.
  void wait_for_reductions();

  /// Starts to fill the tensor with the shards of the group's ranks, in place: rank r of n
  /// contributes the r-th of n equal shards. Returns a handle for wait_for_all_gather(). REQUIRES:
  /// as reduce_scatter_async(), but the tensor is not accessed before wait_for_all_gather().
  [[nodiscard]] int64_t all_gather_async(const at::Tensor& tensor);
  /// The same with separate tensors: starts to fill `output` [shard_group_size() · input.numel()]
  /// with the `input` tensors of the group's ranks, in rank order.
  [[nodiscard]] int64_t all_gather_async(const at::Tensor& output, const at::Tensor& input);
  /// Waits for an all-gather as wait_for_reductions() does. REQUIRES: called once per handle.
  void wait_for_all_gather(int64_t handle);

  /// Returns whether the device has completed the reductions and all-gathers whose wait functions
  /// were called. Polls until it has, or until `timeout`. A lost rank never completes them, so the
  /// result is then false.
  bool poll_until_complete(std::chrono::milliseconds timeout);

  /// Returns the strings of all ranks, in rank order. Blocks until all ranks have called it.
  std::vector<std::string> all_gather_strings(const std::string& text);

  /// Returns the time that this rank, or its device, has spent in wait_for_reductions() and
  /// wait_for_all_gather(). Waits that the device has not completed do not count yet. The slowest
  /// rank waits least.
  double compute_wait_seconds();

  /// Returns the traffic of all-reduces, including those over groups and replicas.
  const CollectiveTraffic& all_reduce_traffic() const { return all_reduce_traffic_; }
  const CollectiveTraffic& reduce_scatter_traffic() const { return reduce_scatter_traffic_; }
  const CollectiveTraffic& all_gather_traffic() const { return all_gather_traffic_; }

 private:
  class Impl;
  template <class Operation>
  void run_with_error_handler(const Operation& operation);
  void check_transferable(const at::Tensor& tensor) const;
  void check_shardable(const at::Tensor& tensor) const;

  std::unique_ptr<Impl> impl_;
  ErrorHandler error_handler_;
  CollectiveTraffic all_reduce_traffic_, reduce_scatter_traffic_, all_gather_traffic_;
};

/// Creates the collectives of one rank without other ranks, for dry runs on any device. Reductions
/// leave tensors unchanged; an all-gather assumes that every other rank has this rank's values.
/// `group` is the number of consecutive ranks over which tensors are sharded; 0 means all ranks.
std::unique_ptr<Collectives> make_fake_collectives(int64_t world_size, int64_t rank = 0, int64_t group = 0);

}  // namespace vlmtrain::distributed
