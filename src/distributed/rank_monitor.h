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
#include "vlmtrain/distributed/ranks.h"

namespace vlmtrain::distributed {

/// Tells the other ranks that this one is there, and finds out whether they are, on threads of its own: rank 0 looks at
/// all of them, the others at rank 0, and the first failure is everybody's.
class RankMonitor {
 public:
  /// `names`: of the ranks, for what is said of a lost one.
  RankMonitor(const Launch& launch, RanksOptions options, std::vector<std::string> names);
  /// Without a failure: tells that this rank is done, and where it is rank 0 waits until all others are.
  ~RankMonitor();
  RankMonitor(const RankMonitor&) = delete;
  RankMonitor& operator=(const RankMonitor&) = delete;

  /// Of this rank. Returns when the others can know it, or cannot.
  void report_failure(Failure failure);

  bool has_lost_rank0();

  /// The first failure, for a caller whose connection to some rank broke; nothing where none is known in time.
  std::optional<Failure> wait_for_failure();

 private:
  using Clock = std::chrono::steady_clock;
  struct LastHeartbeat {
    std::string count;
    Clock::time_point time;
  };

  void run_heartbeat();
  void exchange_status(SharedStore& store, int64_t count);
  /// Whether this rank may go.
  bool sync_shutdown(SharedStore& store) const;
  /// The same, where there was a failure.
  bool acknowledge_failure(SharedStore& store) const;
  void detect_lost_rank(SharedStore& store);
  void run_watchdog();
  void set_failure(const Failure& failure);
  Clock::duration heartbeat_timeout() const;
  std::string describe_lost_rank(int64_t rank) const;
  void sync_broken_flag(SharedStore& store);
  void mark_rank0_lost();  // REQUIRES: mutex_ is held

  const Launch launch_;
  const RanksOptions options_;
  const std::vector<std::string> names_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  std::optional<Failure> own_failure_;  // to be told
  bool is_reported_ = false;
  bool has_lost_rank0_ = false;
  bool is_broken_ = false;   // a connection between ranks: who is silent now is not waited for long
  bool is_noticed_ = false;  // to this rank's own thread
  bool is_done_ = false;
  bool are_all_done_ = false;
  Clock::time_point acknowledge_deadline_ = Clock::time_point::max();  // where there was a failure
  Clock::time_point last_exchange_ = Clock::now();
  std::vector<LastHeartbeat> last_heartbeats_;  // by rank; of the talking thread
  std::jthread watchdog_thread_;
  std::thread heartbeat_thread_;  // left behind where rank 0 does not answer
};

}  // namespace vlmtrain::distributed
