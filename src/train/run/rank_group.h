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

/// A lock that one thread may take and another release. It must outlive its guards.
class CheckpointLock {
 public:
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

  /// Waits for the lock and returns its guard.
  Guard acquire() {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [this] { return !is_held_ && !is_closed_; });
    is_held_ = true;
    return Guard(*this);
  }

  /// Waits until the lock is free, but at most for `timeout`. Later attempts to take it block
  /// forever.
  void close(std::chrono::seconds timeout) {
    std::unique_lock lock(mutex_);
    is_closed_ = true;
    released_.wait_for(lock, timeout, [this] { return !is_held_; });
  }

 private:
  void release() {
    const std::lock_guard lock(mutex_);
    is_held_ = false;
    released_.notify_all();
  }

  std::mutex mutex_;  // guards the members below
  std::condition_variable released_;
  bool is_held_ = false;
  bool is_closed_ = false;
};

/// The processes of a run: this process alone, or one rank of several. All ranks hold the same
/// weights, order and ledger; rank 0 writes.
class RankGroup {
 public:
  /// Waits for the other ranks of `launch`; nullopt: a single process. Throws as
  /// distributed::Ranks.
  explicit RankGroup(const std::optional<distributed::Launch>& launch,
                     std::chrono::milliseconds rendezvous_timeout = distributed::RanksOptions().rendezvous_timeout);

  bool is_single_process() const { return ranks_ == nullptr; }
  /// Returns whether this process writes the run's files.
  bool is_main_process() const { return is_single_process() || ranks_->rank() == 0; }
  int64_t rank() const { return is_single_process() ? 0 : ranks_->rank(); }
  int64_t world_size() const { return is_single_process() ? 1 : ranks_->world_size(); }
  int64_t ranks_on_this_node() const { return ranks_on_this_node_; }
  int64_t num_nodes() const { return num_nodes_; }
  /// Returns the ranks of each machine, which have consecutive numbers. Throws UserError (kUsage)
  /// if machines have different numbers of ranks. VLMTRAIN_RANKS_PER_NODE overrides host names,
  /// so that tests can form groups on one machine.
  int64_t ranks_per_node() const;
  const engine::Consensus& consensus() const { return *consensus_; }
  /// Returns this rank's part of each global batch.
  data::LoaderShard make_loader_shard() const;

  /// Calls `action` on rank 0, then on all other ranks, which can read the files that rank 0 wrote.
  void main_process_first(const std::function<void()>& action) const;
  /// Throws UserError (kUsage) on all ranks, with the ranks whose text differs from that of rank 0.
  void check_equal_on_all_ranks(const std::string& name, const std::string& value) const;

  /// See distributed::Ranks; does nothing for a single process.
  void set_group_size(int64_t count) const;

  /// Enables reductions of gradients on `device`. Throws UserError on all ranks if their devices
  /// have different types or two ranks have the same GPU, and what distributed::Ranks::connect
  /// throws.
  void connect(at::Device device) const;

  /// Returns a guard for the time in which a checkpoint is written; any thread may release it.
  /// While it is held, a lost rank ends this process only after some minutes.
  [[nodiscard]] CheckpointLock::Guard lock_checkpoint() const { return checkpoint_lock_.acquire(); }

  /// Returns whether any rank requests a stop. The ranks also exchange the seconds that they have
  /// waited for each other.
  bool any_rank_stops(bool stops) const;
  /// Returns the seconds of the newest any_rank_stops() by rank; empty for a single process.
  const std::vector<double>& wait_seconds() const { return wait_seconds_; }
  /// Returns which rank the others wait for, for people; empty for a single process.
  std::string describe_waits() const;

  /// Returns the communication volume of `steps` steps, for people; empty for a single process.
  std::string describe_traffic(int64_t steps) const;

  /// Returns whether the reductions of all steps are complete. They are not on a GPU if a rank
  /// was lost in the middle of one.
  bool are_reductions_complete() const;

  /// Calls `action` and reports its error to the other ranks. Rethrows the error, or
  /// AlreadyReported if rank 0 reports it.
  void report_failures(const std::function<void()>& action) const;

 private:
  void check_gpu_not_shared(const std::string& gpu_name) const;

  mutable CheckpointLock checkpoint_lock_;
  std::unique_ptr<distributed::Ranks> ranks_;
  std::unique_ptr<engine::Consensus> consensus_;
  mutable std::vector<double> wait_seconds_;  // by rank
  std::vector<std::string> hostnames_;        // by rank
  int64_t ranks_on_this_node_ = 1;
  int64_t num_nodes_ = 1;
};

}  // namespace vlmtrain::train
