#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/data/loader/loader.h"
#include "vlmtrain/distributed/ranks.h"
#include "vlmtrain/engine/gradients/consensus.h"

namespace vlmtrain::train {

/// A mutex that may be released by a thread other than the one that acquired it. It must outlive
/// its guards. Thread-safe.
class CheckpointLock {
 public:
  /// Releases the lock at the end of its life, on any thread. Movable.
  class Guard {
   public:
    explicit Guard(CheckpointLock& lock) : lock_(&lock) {}
    Guard(Guard&& other) noexcept : lock_(std::exchange(other.lock_, nullptr)) {}
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    Guard& operator=(Guard&&) = delete;
    ~Guard() {
      if (lock_ != nullptr) lock_->release();
    }

   private:
    CheckpointLock* lock_;
  };

  /// Waits for the lock and returns its guard. Blocks forever after close().
  Guard acquire() {
    std::unique_lock lock(mutex_);
    release_condition_.wait(lock, [this] { return !is_held_ && !is_closed_; });
    is_held_ = true;
    return Guard(*this);
  }

  /// Waits until the lock is free, but at most for `timeout`. Later calls of acquire() block
  /// forever. For a process that is about to exit.
  void close(std::chrono::seconds timeout) {
    std::unique_lock lock(mutex_);
    is_closed_ = true;
    release_condition_.wait_for(lock, timeout, [this] { return !is_held_; });
  }

 private:
  void release() {
    const std::lock_guard lock(mutex_);
    is_held_ = false;
    release_condition_.notify_all();
  }

  std::mutex mutex_;  // guards the members below
  std::condition_variable release_condition_;
  bool is_held_ = false;
  bool is_closed_ = false;
};

/// The ranks of a run: a single process, or one rank of several. All ranks have the same sample
/// order and ledger; rank 0 writes the files. Functions marked as collectives must be called by all
/// ranks in the same order. Used by the run's thread; only guards of lock_checkpoint() may move to
/// another thread.
class RankGroup {
 public:
  /// Connects to the other ranks of `launch` and waits for them; nullopt for a single process.
  /// Throws the errors of distributed::DistributedContext. A collective.
  explicit RankGroup(
      const std::optional<distributed::LaunchInfo>& launch,
      std::chrono::milliseconds rendezvous_timeout = distributed::DistributedContextOptions().rendezvous_timeout);

  bool is_single_process() const { return context_ == nullptr; }
  /// Returns whether this process writes the run's files.
  bool is_main_process() const { return is_single_process() || context_->rank() == 0; }
  int64_t rank() const { return is_single_process() ? 0 : context_->rank(); }
  int64_t world_size() const { return is_single_process() ? 1 : context_->world_size(); }
  /// Returns the number of ranks with this host name.
  int64_t local_world_size() const { return local_world_size_; }
  /// Returns the number of distinct host names.
  int64_t num_nodes() const { return num_nodes_; }
  /// Returns the number of ranks per node. Throws UserError (kUsage) unless each node has the same
  /// number of consecutive ranks. The environment variable VLMTRAIN_RANKS_PER_NODE overrides the
  /// result, so that tests can simulate nodes on one machine.
  int64_t compute_ranks_per_node() const;
  /// Returns the number of nodes that each hold a complete training state: with kHybrid, and with
  /// nullopt (`auto`) if kHybrid is possible, otherwise 1. Throws as compute_ranks_per_node().
  int64_t compute_num_replicas(std::optional<engine::ShardingStrategy> sharding) const;
  const engine::Consensus& consensus() const { return *consensus_; }
  /// Returns this rank's part of each global batch for the loader. Must not outlive this object.
  data::LoaderShard make_loader_shard() const;

  /// Calls `action` on rank 0 and then on all other ranks, which can read the files that rank 0
  /// wrote. A collective.
  void main_process_first(const std::function<void()>& action) const;
  /// The ranks whose value differs from rank 0's.
  struct Difference {
    std::string ranks;    ///< with a verb: "rank 1 has", "ranks 1, 3 have"
    std::string value;    ///< of the first of them
    std::string value_0;  ///< of rank 0
  };

  /// Compares `value` with rank 0's. Returns the same on all ranks: nothing if all values are equal.
  /// A collective.
  std::optional<Difference> find_difference(const std::string& value) const;
  /// Throws UserError (kUsage) unless all ranks start after the same `step`, which they read in
  /// output.dir. A collective.
  void check_same_start(int64_t step) const;

  /// Sets the number of ranks that hold one copy of the sharded state
  /// (distributed::DistributedContext). Does nothing for a single process. REQUIRES: connect() was
  /// not called.
  void set_shard_group_size(int64_t count) const;

  /// Sets up the collectives for tensors on `device`. Throws UserError (kUsage) on all ranks if
  /// their devices have different types or two ranks have the same GPU, and the errors of
  /// distributed::DistributedContext::connect_device(). A collective.
  void connect(at::Device device) const;

  /// Returns a guard to hold while a checkpoint is written; any thread may release it. If a rank is
  /// lost meanwhile, this process waits up to five minutes for the checkpoint before it exits.
  [[nodiscard]] CheckpointLock::Guard lock_checkpoint() const { return checkpoint_lock_.acquire(); }

  /// Returns whether `stops` is true on any rank. Also exchanges the seconds that ranks have waited
  /// for each other. A collective.
  bool any_rank_stops(bool stops) const;
  /// Returns the seconds that each rank has waited for the others, by rank, as of the newest
  /// any_rank_stops(); empty for a single process.
  const std::vector<double>& rank_wait_seconds() const { return rank_wait_seconds_; }
  /// Returns a clause for the log about the slowest rank; empty for a single process.
  std::string describe_slowest_rank() const;

  /// Returns a clause for the log about the communication volume of `steps` steps of this process;
  /// empty for a single process.
  std::string describe_collective_traffic(int64_t steps) const;

  /// Returns whether the gradient reductions of all steps are complete. On a GPU they are not if a
  /// rank was lost during one. Waits up to two seconds.
  bool are_reductions_complete() const;

  /// Calls `action`. If it throws, reports the error to the other ranks and rethrows it. Throws
  /// AlreadyReportedError instead on a rank other than 0 if rank 0 reports the same error. Exits
  /// the process if a reduction of a lost rank would block the destruction of the model.
  void run_and_report_failure(const std::function<void()>& action) const;

 private:
  void check_gpu_not_shared(const std::string& gpu_name) const;

  mutable CheckpointLock checkpoint_lock_;
  std::unique_ptr<distributed::DistributedContext> context_;
  std::unique_ptr<engine::Consensus> consensus_;
  mutable std::vector<double> rank_wait_seconds_;  // by rank
  std::vector<std::string> hostnames_;             // by rank
  int64_t local_world_size_ = 1;
  int64_t num_nodes_ = 1;
};

}  // namespace vlmtrain::train
