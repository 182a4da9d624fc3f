#include "app/process/process_control.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/memory/cpu_info.h"
#include "vlmtrain/train/stop_request.h"

namespace vlmtrain::app {

namespace {

constexpr const char* kLauncherPidEnvVar = "VLMTRAIN_LAUNCHER_PROCESS";
/// Time for the other ranks to end by themselves after one has failed, before they are killed. It
/// is above the half minute within which ranks notice a lost rank.
constexpr time_t kRankExitTimeoutSeconds = 45;

/// Returns a TCP port of this machine on which no process listens. Another process may take it
/// before rank 0 does.
int64_t find_free_port() {
  const int listener_socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const socket_address = reinterpret_cast<sockaddr*>(&address);
  const bool is_bound = listener_socket >= 0 && bind(listener_socket, socket_address, length) == 0 &&
                        getsockname(listener_socket, socket_address, &length) == 0;
  const int error = errno;
  if (listener_socket >= 0) close(listener_socket);
  if (!is_bound) throw run_error("--nproc-per-node: cannot get a free port on 127.0.0.1: {}", std::strerror(error));
  return ntohs(address.sin_port);
}

/// The child processes of launch_ranks(), one per rank.
class LocalRankProcesses {
 public:
  /// Starts the ranks. Blocks the handled signals in this thread for wait_for_ranks(). Throws
  /// UserError (kFailed), after killing the ranks that it has started.
  explicit LocalRankProcesses(int64_t num_ranks) : num_ranks_(num_ranks) {
    sigemptyset(&handled_signals_);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&handled_signals_, signal);
    pthread_sigmask(SIG_BLOCK, &handled_signals_, nullptr);
    train::wait_forever_if_exiting();  // A signal is ending this process, so ranks would lose their launcher.
    const int64_t port = find_free_port();
    for (int64_t rank = 0; rank < num_ranks; ++rank) start_rank_process(rank, port);
  }

  /// Waits until all ranks have ended. Returns the exit code of launch_ranks(). After a failure,
  /// waits at most kRankExitTimeoutSeconds for the next rank to end, then kills the others.
  ExitCode wait_for_ranks() {
    while (!ranks_by_pid_.empty()) {
      siginfo_t info{};
      const timespec timeout{.tv_sec = kRankExitTimeoutSeconds, .tv_nsec = 0};
      const int signal = first_failure_code_ ? sigtimedwait(&handled_signals_, &info, &timeout)
                                             : sigwaitinfo(&handled_signals_, &info);
      if (signal == SIGCHLD) {
        reap_ranks();
        if (first_failure_code_ && suspended_pids_.size() == ranks_by_pid_.size())
          signal_all_ranks(SIGKILL);  // suspended processes do not end by themselves
      } else if (signal > 0) {
        forward_signal(signal);
      } else if (first_failure_code_ && errno == EAGAIN) {
        signal_all_ranks(SIGKILL);
      }
    }
    return was_stopped_before_training_ ? ExitCode::kStopped : first_failure_code_.value_or(ExitCode::kSuccess);
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// Forwards a stop signal to the ranks. SIGINT becomes SIGTERM: a terminal also sends SIGINT to
  /// the ranks, and a rank would take a second SIGINT for a request to end at once, but any number
  /// of SIGTERM is the same request. A SIGINT more than kInterruptWindowSeconds after the first one
  /// means that the user does not wait for a checkpoint, so it kills the ranks.
  void forward_signal(int signal) {
    constexpr std::chrono::duration<double> kInterruptWindow(train::kInterruptWindowSeconds);
    if (signal == SIGINT && first_interrupt_time_ && Clock::now() - *first_interrupt_time_ > kInterruptWindow) {
      spdlog::error("interrupted again: killing all ranks");
      signal_all_ranks(SIGKILL);
      return;
    }
    if (signal == SIGINT && !first_interrupt_time_) first_interrupt_time_ = Clock::now();
    is_stop_requested_ = true;
    signal_all_ranks(signal == SIGINT ? SIGTERM : signal);
  }

  /// Returns whether the signal requests a stop (train/stop_request.h).
  static bool is_stop_signal(int signal) {
    constexpr std::array kStopSignals{SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    return std::ranges::find(kStopSignals, signal) != kStopSignals.end();
  }

  /// Starts a rank that connects to rank 0 on `port` of this machine.
  void start_rank_process(int64_t rank, int64_t port) {
    std::map<std::string, std::string> rank_env_vars{{"RANK", std::to_string(rank)},
                                                     {"LOCAL_RANK", std::to_string(rank)},
                                                     {"WORLD_SIZE", std::to_string(num_ranks_)},
                                                     {"MASTER_ADDR", "127.0.0.1"},
                                                     {"MASTER_PORT", std::to_string(port)},
                                                     {kLauncherEnvVar, kLocalLauncherName},
                                                     {kLauncherPidEnvVar, std::to_string(getpid())}};
    if (std::getenv("OMP_NUM_THREADS") == nullptr) {
      const int64_t num_cores = memory::compute_default_num_threads();
      rank_env_vars["OMP_NUM_THREADS"] = std::to_string(std::max<int64_t>(1, num_cores / num_ranks_));
    }
    auto environment = make_environment(rank_env_vars, [](std::string_view) { return true; });
    auto arguments = read_process_arguments();
    posix_spawnattr_t spawn_attributes;
    posix_spawnattr_init(&spawn_attributes);
    sigset_t empty_signal_set;
    sigemptyset(&empty_signal_set);
    posix_spawnattr_setsigmask(&spawn_attributes, &empty_signal_set);  // a rank would inherit the blocked signals
    posix_spawnattr_setflags(&spawn_attributes, POSIX_SPAWN_SETSIGMASK);
    pid_t pid = 0;
    const int error =
        posix_spawn(&pid, get_program_path().c_str(), nullptr, &spawn_attributes,
                    make_null_terminated_array(arguments).data(), make_null_terminated_array(environment).data());
    posix_spawnattr_destroy(&spawn_attributes);
    if (error != 0) {
      signal_all_ranks(SIGKILL);
      throw run_error("--nproc-per-node: cannot start rank {}: {}; check the limit on processes (ulimit -u)", rank,
                      std::strerror(error));
    }
    ranks_by_pid_[pid] = rank;
  }

  /// Handles all ranks that have ended, been suspended or been continued. One SIGCHLD may stand for
  /// several of them.
  void reap_ranks() {
    constexpr int kWaitFlags = WNOHANG | WUNTRACED | WCONTINUED;
    int status = 0;
    for (pid_t pid = waitpid(-1, &status, kWaitFlags); pid > 0; pid = waitpid(-1, &status, kWaitFlags)) {
      if (!ranks_by_pid_.contains(pid)) continue;
      if (WIFSTOPPED(status)) {
        suspended_pids_.insert(pid);
      } else if (WIFCONTINUED(status)) {
        suspended_pids_.erase(pid);
      } else {
        handle_rank_exit(pid, status);
      }
    }
  }

  void handle_rank_exit(pid_t pid, int status) {
    if (WIFSIGNALED(status) && is_stop_requested_ && is_stop_signal(WTERMSIG(status))) {
      // The signal ended the rank before its handlers were installed. The other ranks notice that
      // it is lost, but that is not a failure.
      if (!std::exchange(was_stopped_before_training_, true)) {
        spdlog::info(
            "stopped by signal {} before a step was done, so there is no checkpoint to write; the same command starts "
            "again",
            WTERMSIG(status));
      }
      signal_all_ranks(SIGTERM);
    } else if (WIFSIGNALED(status)) {
      spdlog::error("rank {} was ended by signal {}{}; run the same command to resume", ranks_by_pid_.at(pid),
                    WTERMSIG(status),
                    WTERMSIG(status) == SIGKILL ? ", perhaps because host memory was full (dmesg)" : "");
      if (!first_failure_code_) first_failure_code_ = ExitCode::kFailed;
    } else if (WEXITSTATUS(status) != 0 && !first_failure_code_) {
      first_failure_code_ = static_cast<ExitCode>(WEXITSTATUS(status));
    }
    ranks_by_pid_.erase(pid);
    suspended_pids_.erase(pid);
  }

  void signal_all_ranks(int signal) const {
    for (const auto& [pid, rank] : ranks_by_pid_) kill(pid, signal);
  }

  const int64_t num_ranks_;
  sigset_t handled_signals_{};
  std::map<pid_t, int64_t> ranks_by_pid_;       // the running ranks
  std::set<pid_t> suspended_pids_;              // running ranks that SIGSTOP or a similar signal has suspended
  std::optional<ExitCode> first_failure_code_;  // exit code of the first rank that failed
  bool is_stop_requested_ = false;              // a stop signal was forwarded
  bool was_stopped_before_training_ = false;    // a stop signal ended a rank before its first step
  std::optional<Clock::time_point> first_interrupt_time_;  // time of the first SIGINT
};

}  // namespace

ExitCode launch_ranks(int64_t num_ranks) {
  return LocalRankProcesses(num_ranks).wait_for_ranks();
}

void exit_when_launcher_exits() {
  const char* const launcher = std::getenv(kLauncherPidEnvVar);
  if (launcher == nullptr) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (std::to_string(getppid()) != launcher)
    throw run_error("--nproc-per-node: the process that started this rank has exited; run the same command again");
}

namespace {

/// Handler of stop signals for `train`, until its steps begin.
void exit_before_first_step(int signal) {
  [[maybe_unused]] const auto cleanup_lock = io::lock_and_remove_temp_files();
  std::fprintf(stderr,
               "vlmtrain: stopped by signal %d before a step was done, so there is no checkpoint to write; the same "
               "command starts again\n",
               signal);
  _exit(static_cast<int>(ExitCode::kStopped));
}

/// Handler of stop signals for other commands. Ends the process by the signal itself, so that a
/// shell also ends the script that has started it.
void end_process_by_signal(int signal) {
  [[maybe_unused]] const auto cleanup_lock = io::lock_and_remove_temp_files();
  ::signal(signal, SIG_DFL);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, signal);
  pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
  raise(signal);
  // Reached only in the first process of a container, which signals do not end by default. 128 +
  // the signal is the exit code that shells report for such an end.
  constexpr int kSignalExitCodeBase = 128;
  _exit(kSignalExitCodeBase + signal);
}

}  // namespace

void exit_on_signal(std::string_view command) {
  if (command == "dry-run") return;  // the process that started it ends it
  train::install_stop_handlers(command == "train" ? exit_before_first_step : end_process_by_signal);
}

}  // namespace vlmtrain::app
