#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "distributed/store.h"
#include "vlmtrain/distributed/launch.h"

namespace vlmtrain::distributed {

/// A monitor that sends this rank's heartbeats and detects lost ranks, on threads of its own. Rank
/// 0 watches all other ranks, and they watch rank 0. The first failure ends the run on all ranks.
/// Thread-safe.
class RankMonitor {
 public:
  /// `names` has one name per rank, for messages about a lost rank. REQUIRES: rank 0's store
  /// exists.
  RankMonitor(const LaunchInfo& launch_info, DistributedContextOptions options, std::vector<std::string> names);
  /// Reports that this rank is done. Without a failure, waits some seconds until all ranks are
  /// done; rank 0 exits last, because it hosts the store.
  ~RankMonitor();
  RankMonitor(const RankMonitor&) = delete;
  RankMonitor& operator=(const RankMonitor&) = delete;

  /// Publishes a failure of this rank, unless another failure is known. Returns once it is in the
  /// store, or after a timeout.
  void report_failure(const RankFailure& failure);

  /// Returns whether this rank has detected the loss of rank 0.
  bool has_lost_rank0();

  /// Waits for the first failure of the run. Called if the connection to a rank broke, which the
  /// failure explains. Returns nothing if no failure becomes known in time.
  std::optional<RankFailure> wait_for_failure();

 private:
  using Clock = std::chrono::steady_clock;
  /// The latest heartbeat of a rank, and the time at which it changed.
  struct LastHeartbeat {
    std::string sequence_number;
    Clock::time_point time;
  };

  /// Body of the heartbeat thread, which exchanges this rank's status with rank 0's store.
  void run_heartbeat();
  /// Sends one heartbeat and reads the state of the other ranks.
  void exchange_status(SharedStore& store, int64_t sequence_number);
  /// Reports that this rank is done. Returns whether all ranks are, so that it may exit.
  bool sync_shutdown(SharedStore& store) const;
  /// Reports that this rank has noticed the failure. Returns whether it may exit.
  bool acknowledge_failure(SharedStore& store) const;
  /// On rank 0: reports a rank whose last heartbeat is older than compute_heartbeat_timeout(), if
  /// any.
  void detect_lost_rank(SharedStore& store);
  /// Body of the watchdog thread, which detects a lost rank 0, and calls on_hang.
  void run_watchdog();
  void set_failure(const RankFailure& failure);
  Clock::duration compute_heartbeat_timeout() const;
  std::string describe_lost_rank(int64_t rank) const;
  /// Shares is_connection_broken_ with rank 0.
  void sync_broken_connection_flag(SharedStore& store);
  void mark_rank0_lost();  // REQUIRES: mutex_ is held

  const LaunchInfo launch_info_;
  const DistributedContextOptions options_;
  const std::vector<std::string> rank_names_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable state_changed_;
  std::optional<RankFailure> failure_;
  std::optional<RankFailure> local_failure_;  // to be published
  bool is_failure_published_ = false;         // whether the store has local_failure_ or an earlier failure
  bool has_lost_rank0_ = false;
  bool is_connection_broken_ = false;  // a connection between two ranks broke, which shortens the heartbeat timeout
  bool has_noticed_failure_ = false;   // this rank's own thread has noticed the failure
  bool is_local_rank_done_ = false;
  bool are_all_ranks_done_ = false;
  Clock::time_point acknowledgment_deadline_ = Clock::time_point::max();  // finite after a failure
  Clock::time_point last_exchange_time_ = Clock::now();
  std::vector<LastHeartbeat> last_heartbeats_;  // by rank; used by the heartbeat thread only
  std::jthread watchdog_thread_;
  std::thread heartbeat_thread_;  // detached if rank 0 does not answer
};

}  // namespace vlmtrain::distributed
