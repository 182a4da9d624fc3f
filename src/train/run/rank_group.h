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

#include "vlmtrain/data/loader.h"
#include "vlmtrain/distributed/consensus.h"
#include "vlmtrain/distributed/ranks.h"
#include "vlmtrain/engine/consensus.h"

namespace vlmtrain::train {

/// Lets one through at a time, who may leave it in another thread than he came in. Must outlive its passes.
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

  Guard acquire() {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [this] { return !is_held_ && !is_closed_; });
    is_held_ = true;
    return Guard(*this);
  }

  /// Waits until nobody is within, but no longer than `timeout`; who comes from then on waits for ever.
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

  std::mutex mutex_;  // guards what follows
  std::condition_variable released_;
  bool is_held_ = false;
  bool is_closed_ = false;
};

/// The processes that a run consists of, of which this is one: by itself, or a rank among others. All ranks hold the
/// same weights, order and ledger; rank 0 writes.
class RankGroup {
 public:
  /// Nothing: by itself. Else waits for the others; errors as distributed::Ranks.
  explicit RankGroup(const std::optional<distributed::Launch>& launch,
                     std::chrono::milliseconds rendezvous_timeout = distributed::RanksOptions().rendezvous_timeout);

  bool is_single_process() const { return ranks_ == nullptr; }
  /// Whether this process writes what the run leaves behind.
  bool is_main_process() const { return is_single_process() || ranks_->rank() == 0; }
  int64_t rank() const { return is_single_process() ? 0 : ranks_->rank(); }
  int64_t world_size() const { return is_single_process() ? 1 : ranks_->world_size(); }
  int64_t ranks_on_this_node() const { return ranks_on_this_node_; }
  int64_t num_nodes() const { return num_nodes_; }
  /// As many on each machine, consecutively numbered. Throws UserError (kUsage) where they are not so. The variable
  /// VLMTRAIN_RANKS_OF_A_NODE counts instead of host names, so that groups can be tried on one machine.
  int64_t ranks_per_node() const;
  const engine::Consensus& consensus() const { return *consensus_; }
  data::LoaderShard make_loader_shard() const;

  /// Calls `action` on rank 0, then on all others, so that they find what it has left behind.
  void main_process_first(const std::function<void()>& action) const;
  /// Throws UserError (kUsage) in all ranks, which names those that have another text than rank 0.
  void check_equal_on_all_ranks(const std::string& name, const std::string& value) const;

  /// As distributed::Ranks; nothing for a process by itself.
  void set_group_size(int64_t count) const;

  /// From now on gradients on `device` can be added up. Throws UserError in all ranks where they are not on devices of
  /// one kind, or two have the same card; errors of distributed::Ranks::connect.
  void connect(at::Device device) const;

  /// Held while a checkpoint is written, by whatever thread gives it back: a lost rank does not end this process
  /// meanwhile, for some minutes. One at a time.
  [[nodiscard]] CheckpointLock::Guard lock_checkpoint() const { return checkpoint_lock_.acquire(); }

  /// Whether any rank is asked to stop; each tells how long it has waited for the others.
  bool any_rank_stops(bool stops) const;
  /// Seconds by rank, as any_rank_stops() was told last; empty for a process by itself.
  const std::vector<double>& wait_seconds() const { return wait_seconds_; }
  /// Which rank the others wait for, for people; empty for a process by itself.
  std::string describe_waits() const;

  /// What ranks have told each other in so many steps, for people; empty for a process by itself.
  std::string describe_traffic(int64_t steps) const;

  /// Whether the sums of the steps so far are there: not on a GPU where a rank was lost in the middle of one.
  bool are_reductions_complete() const;

  /// Calls `action`; what it throws is told to the other ranks, and is thrown again: AlreadyReported where rank 0 tells
  /// it.
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
