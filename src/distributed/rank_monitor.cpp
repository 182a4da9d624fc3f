#include "distributed/rank_monitor.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace vlmtrain::distributed {

namespace {

using namespace std::chrono_literals;

/// Each heartbeat is a few requests to rank 0's store. The timeouts below are several intervals
/// long. The durations were not tuned.
constexpr auto kHeartbeatInterval = 500ms;
/// The interval at the end of a run, which waits for the last exchange.
constexpr auto kShutdownHeartbeatInterval = 10ms;
/// After a broken connection, a rank without a heartbeat for this long counts as lost.
constexpr auto kBrokenConnectionTimeout = 3s;
/// Time to wait for the reason of a broken connection. Rank 0 needs its heartbeat timeout (12 s by
/// default), and the failure needs some heartbeats to reach this rank.
constexpr auto kFailureReasonTimeout = 16s;
/// Time in which a rank that has noticed a failure must exit. on_hang may then wait for running
/// writes.
constexpr auto kExitTimeout = 15s;
/// Time in which a rank's thread must notice a failure before on_hang is called.
constexpr auto kFailureNoticeTimeout = 4s;
/// Time that a rank waits for all other ranks to be done, if no rank failed.
constexpr auto kShutdownTimeout = 5s;
/// Time that rank 0 waits for the other ranks to acknowledge a failure. A lost rank never does.
constexpr auto kAcknowledgmentTimeout = 2s;

constexpr const char* kFailureKey = "failure";
/// Set when a connection between two ranks broke. Either of the two may be the lost one.
constexpr const char* kBrokenConnectionKey = "broken";

std::string make_heartbeat_key(int64_t rank) {
  return fmt::format("beat/{}", rank);
}

std::string make_done_key(int64_t rank) {
  return fmt::format("done/{}", rank);
}

/// Returns the key that a rank sets when it has read that all ranks are done. Rank 0 exits last,
/// because it hosts the store.
std::string make_exited_key(int64_t rank) {
  return fmt::format("gone/{}", rank);
}

/// Returns the key that a rank sets when it has noticed the failure.
std::string make_acknowledgment_key(int64_t rank) {
  return fmt::format("heard/{}", rank);
}

std::string serialize_failure(const RankFailure& failure) {
  return nlohmann::json{{"rank", failure.rank}, {"code", failure.code}, {"reason", failure.reason}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankFailure parse_failure(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {.rank = json.at("rank"), .code = json.at("code").get<ExitCode>(), .reason = json.at("reason")};
}

}  // namespace

RankMonitor::RankMonitor(const LaunchInfo& launch_info, DistributedContextOptions options,
                         std::vector<std::string> names)
    : launch_info_(launch_info),
      options_(std::move(options)),
      rank_names_(std::move(names)),
      last_heartbeats_(rank_names_.size()) {
  for (LastHeartbeat& last_heartbeat : last_heartbeats_) last_heartbeat.time = Clock::now();
  heartbeat_thread_ = std::thread([this] { run_heartbeat(); });
  watchdog_thread_ = std::jthread([this] { run_watchdog(); });
}

RankMonitor::~RankMonitor() {
  bool is_store_responding = true;
  {
    std::unique_lock lock(mutex_);
    is_local_rank_done_ = true;
    state_changed_.notify_all();
    const auto is_finished = [this] { return failure_ || are_all_ranks_done_; };
    state_changed_.wait_for(lock, kShutdownTimeout, is_finished);
    is_store_responding = Clock::now() - last_exchange_time_ < kShutdownTimeout;
  }
  watchdog_thread_.join();
  if (is_store_responding) {
    heartbeat_thread_.join();
  } else {
    // The thread is blocked by a machine that does not respond, and the process is about to end.
    heartbeat_thread_.detach();
  }
}

void RankMonitor::report_failure(const RankFailure& failure) {
  std::unique_lock lock(mutex_);
  has_noticed_failure_ = true;
  if (failure_) return;
  local_failure_ = failure;
  state_changed_.notify_all();
  state_changed_.wait_for(lock, kBrokenConnectionTimeout, [this] { return is_failure_published_ || failure_; });
}

std::optional<RankFailure> RankMonitor::wait_for_failure() {
  std::unique_lock lock(mutex_);
  is_connection_broken_ = true;
  has_noticed_failure_ = true;
  state_changed_.wait_for(lock, kFailureReasonTimeout, [this] { return failure_.has_value(); });
  return failure_;
}

bool RankMonitor::has_lost_rank0() {
  const std::lock_guard lock(mutex_);
  return has_lost_rank0_;
}

void RankMonitor::mark_rank0_lost() {
  has_lost_rank0_ = true;
  if (!failure_) failure_ = RankFailure{.rank = 0, .code = ExitCode::kFailed, .reason = describe_lost_rank(0)};
  state_changed_.notify_all();
}

void RankMonitor::set_failure(const RankFailure& failure) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = failure;
  acknowledgment_deadline_ = Clock::now() + kAcknowledgmentTimeout;
  state_changed_.notify_all();
}

RankMonitor::Clock::duration RankMonitor::compute_heartbeat_timeout() const {
  return is_connection_broken_ ? std::min<Clock::duration>(kBrokenConnectionTimeout, options_.heartbeat_timeout)
                               : options_.heartbeat_timeout;
}

constexpr const char* kLostRankAdvice = "check its log and dmesg there, then run the same command to resume";

std::string RankMonitor::describe_lost_rank(int64_t rank) const {
  const std::string& name = rank_names_[static_cast<size_t>(rank)];
  if (is_connection_broken_)
    return fmt::format("{} disconnected: it was killed, or its node or network failed; {}", name, kLostRankAdvice);
  return fmt::format("{} has not responded for {:.0f} s: it was stopped, or its node or network failed; {}", name,
                     std::chrono::duration<double>(compute_heartbeat_timeout()).count(), kLostRankAdvice);
}

/// Only this thread exchanges messages with rank 0's store, because SharedStore is not thread-safe.
void RankMonitor::run_heartbeat() {
  try {
    SharedStore store(launch_info_, /*is_server=*/false, options_.rendezvous_timeout);
    for (int64_t sequence_number = 1;; ++sequence_number) {
      exchange_status(store, sequence_number);
      std::unique_lock lock(mutex_);
      last_exchange_time_ = Clock::now();
      state_changed_.notify_all();
      if (are_all_ranks_done_ || Clock::now() > acknowledgment_deadline_) return;
      const auto heartbeat_interval = is_local_rank_done_ || failure_ ? kShutdownHeartbeatInterval : kHeartbeatInterval;
      state_changed_.wait_for(lock, heartbeat_interval, [this, is_local_rank_done = is_local_rank_done_] {
        return (local_failure_ && !is_failure_published_) || is_local_rank_done_ != is_local_rank_done;
      });
    }
  } catch (const std::exception&) {
    const std::unique_lock lock(mutex_);
    const bool is_shutting_down = is_local_rank_done_;
    if (is_shutting_down) {
      are_all_ranks_done_ = true;  // rank 0 exited as soon as all ranks were done
      state_changed_.notify_all();
      return;
    }
    is_connection_broken_ = true;
    mark_rank0_lost();
  }
}

void RankMonitor::exchange_status(SharedStore& store, int64_t sequence_number) {
  store.set(make_heartbeat_key(launch_info_.rank), std::to_string(sequence_number));
  std::optional<RankFailure> local_failure;
  bool is_local_rank_done = false;
  {
    const std::lock_guard lock(mutex_);
    local_failure = local_failure_;
    is_local_rank_done = is_local_rank_done_;
  }
  if (local_failure) store.set_if_absent(kFailureKey, serialize_failure(*local_failure));
  sync_broken_connection_flag(store);
  if (!store.has_keys({kFailureKey}) && launch_info_.rank == 0) detect_lost_rank(store);
  const bool has_failure = store.has_keys({kFailureKey});
  if (has_failure) set_failure(parse_failure(store.get({kFailureKey}).front()));
  const bool are_all_ranks_done = has_failure ? acknowledge_failure(store) : is_local_rank_done && sync_shutdown(store);
  const std::lock_guard lock(mutex_);
  is_failure_published_ = local_failure.has_value();
  are_all_ranks_done_ = are_all_ranks_done;
}

/// Shares is_connection_broken_ with rank 0: only the two ranks of a broken connection notice that
/// it broke.
void RankMonitor::sync_broken_connection_flag(SharedStore& store) {
  bool is_connection_broken = false;
  {
    const std::lock_guard lock(mutex_);
    is_connection_broken = is_connection_broken_;
  }
  if (is_connection_broken) {
    store.set(kBrokenConnectionKey, "");
  } else if (launch_info_.rank == 0 && store.has_keys({kBrokenConnectionKey})) {
    const std::lock_guard lock(mutex_);
    is_connection_broken_ = true;
  }
}

bool RankMonitor::sync_shutdown(SharedStore& store) const {
  store.set(make_done_key(launch_info_.rank), "");
  std::vector<std::string> done_keys, exited_keys;
  for (int64_t rank = 0; rank < launch_info_.world_size; ++rank) {
    done_keys.push_back(make_done_key(rank));
    if (rank != 0) exited_keys.push_back(make_exited_key(rank));
  }
  if (!store.has_keys(done_keys)) return false;
  if (launch_info_.rank == 0) return store.has_keys(exited_keys);
  store.set(make_exited_key(launch_info_.rank), "");
  return true;
}

bool RankMonitor::acknowledge_failure(SharedStore& store) const {
  store.set(make_acknowledgment_key(launch_info_.rank), "");
  if (launch_info_.rank != 0) return true;
  std::vector<std::string> acknowledged_keys;
  for (int64_t rank = 0; rank < launch_info_.world_size; ++rank)
    acknowledged_keys.push_back(make_acknowledgment_key(rank));
  return store.has_keys(acknowledged_keys);
}

/// Reports the rank with the oldest heartbeat.
void RankMonitor::detect_lost_rank(SharedStore& store) {
  const auto now = Clock::now();
  int64_t oldest_heartbeat_rank = 0;
  for (int64_t rank = 1; rank < launch_info_.world_size; ++rank) {
    LastHeartbeat& last_heartbeat = last_heartbeats_[static_cast<size_t>(rank)];
    const std::string name = make_heartbeat_key(rank);
    const std::string sequence_number = store.has_keys({name}) ? store.get({name}).front() : std::string();
    if (sequence_number != last_heartbeat.sequence_number || store.has_keys({make_done_key(rank)}))
      last_heartbeat = {.sequence_number = sequence_number, .time = now};
    if (oldest_heartbeat_rank == 0 ||
        last_heartbeat.time < last_heartbeats_[static_cast<size_t>(oldest_heartbeat_rank)].time)
      oldest_heartbeat_rank = rank;
  }
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    if (now - last_heartbeats_[static_cast<size_t>(oldest_heartbeat_rank)].time > compute_heartbeat_timeout())
      reason = describe_lost_rank(oldest_heartbeat_rank);
  }
  if (reason.empty()) return;
  store.set_if_absent(kFailureKey,
                      serialize_failure({.rank = oldest_heartbeat_rank, .code = ExitCode::kFailed, .reason = reason}));
}

/// Detects that rank 0 does not respond, and calls on_hang if this rank does not exit after a
/// failure.
void RankMonitor::run_watchdog() {
  std::unique_lock lock(mutex_);
  for (;;) {
    state_changed_.wait_for(lock, kHeartbeatInterval);
    if (is_local_rank_done_ &&
        (failure_ || are_all_ranks_done_ || Clock::now() - last_exchange_time_ >= kShutdownTimeout))
      return;
    if (!failure_ && !is_local_rank_done_ && launch_info_.rank != 0 &&
        Clock::now() - last_exchange_time_ > compute_heartbeat_timeout()) {
      mark_rank0_lost();
    }
    if (failure_) break;
  }
  const auto start = Clock::now();
  // A rank may hang although it has noticed the failure: in a call that waits for a device, which
  // waits for the lost rank.
  const auto deadline = [&] { return start + (has_noticed_failure_ ? kExitTimeout : kFailureNoticeTimeout); };
  while (!is_local_rank_done_ && Clock::now() < deadline()) state_changed_.wait_until(lock, deadline());
  if (is_local_rank_done_) return;
  const RankFailure failure = *failure_;
  lock.unlock();
  if (options_.on_hang) options_.on_hang(failure);
}

}  // namespace vlmtrain::distributed
