#include "app/launch.h"

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
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "vlmtrain/base/log.h"
#include "vlmtrain/base/program.h"
#include "vlmtrain/memory/processor.h"
#include "vlmtrain/train/stop_request.h"

namespace vlmtrain::app {

namespace {

constexpr const char* kLauncherProcess = "VLMTRAIN_LAUNCHER_PROCESS";
/// That ranks take to end by themselves once one has failed, at most; then they are killed.
constexpr time_t kSecondsToEnd = 45;

/// One that nobody listens at now, as the system gives it.
int64_t free_port() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const general = reinterpret_cast<sockaddr*>(&address);
  const bool is_found =
      listener >= 0 && bind(listener, general, length) == 0 && getsockname(listener, general, &length) == 0;
  const int error = errno;
  if (listener >= 0) close(listener);
  if (!is_found) throw run_error("--launch: no port of this machine can be had: {}", std::strerror(error));
  return ntohs(address.sin_port);
}

class LocalRanks {
 public:
  explicit LocalRanks(int64_t count) : count_(count) {
    sigemptyset(&signals_);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&signals_, signal);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    train::wait_if_leaving();  // ranks that start now would find no launcher
    const int64_t port = free_port();
    for (int64_t rank = 0; rank < count; ++rank) start(rank, port);
  }

  ExitCode wait() {
    while (!running_.empty()) {
      siginfo_t info{};
      const timespec patience{.tv_sec = kSecondsToEnd, .tv_nsec = 0};
      const int signal = failed_ ? sigtimedwait(&signals_, &info, &patience) : sigwaitinfo(&signals_, &info);
      if (signal == SIGCHLD) {
        take_changes();
        if (failed_ && stopped_.size() == running_.size()) tell_all(SIGKILL);  // none of them ends by itself
      } else if (signal > 0) {
        forward(signal);
      } else if (failed_ && errno == EAGAIN) {
        tell_all(SIGKILL);
      }
    }
    return is_stopped_ ? ExitCode::kStopped : failed_.value_or(ExitCode::kDone);
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// Ranks may have the signal too, as from a terminal, or may have started after it: SIGTERM asks for the same stop as
  /// SIGINT, however often it comes. Whoever interrupts again later does not wait for a checkpoint.
  void forward(int signal) {
    constexpr std::chrono::duration<double> kOneInterrupt(train::kSecondsOfOneInterrupt);
    if (signal == SIGINT && interrupted_ && Clock::now() - *interrupted_ > kOneInterrupt) {
      spdlog::error("interrupted again: the ranks are ended at once");
      tell_all(SIGKILL);
      return;
    }
    if (signal == SIGINT && !interrupted_) interrupted_ = Clock::now();
    is_stop_requested_ = true;
    tell_all(signal == SIGINT ? SIGTERM : signal);
  }

  static bool asks_for_stop(int signal) {
    constexpr std::array kStopSignals{SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    return std::ranges::find(kStopSignals, signal) != kStopSignals.end();
  }

  void start(int64_t rank, int64_t port) {
    std::map<std::string, std::string> variables{{"RANK", std::to_string(rank)},
                                                 {"LOCAL_RANK", std::to_string(rank)},
                                                 {"WORLD_SIZE", std::to_string(count_)},
                                                 {"MASTER_ADDR", "127.0.0.1"},
                                                 {"MASTER_PORT", std::to_string(port)},
                                                 {kLauncher, kLaunchedByUs},
                                                 {kLauncherProcess, std::to_string(getpid())}};
    if (std::getenv("OMP_NUM_THREADS") == nullptr) {
      const int64_t cores = memory::default_threads();
      variables["OMP_NUM_THREADS"] = std::to_string(std::max<int64_t>(1, cores / count_));
    }
    auto environment = environment_with(variables, [](std::string_view) { return true; });
    auto arguments = own_arguments();
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    pid_t id = 0;
    const int error = posix_spawn(&id, "/proc/self/exe", nullptr, &attributes, exec_pointers(arguments).data(),
                                  exec_pointers(environment).data());
    posix_spawnattr_destroy(&attributes);
    if (error != 0) {
      tell_all(SIGKILL);
      throw run_error("--launch: rank {} cannot be started: {}", rank, std::strerror(error));
    }
    running_[id] = rank;
  }

  void take_changes() {
    constexpr int kChanges = WNOHANG | WUNTRACED | WCONTINUED;
    int status = 0;
    for (pid_t id = waitpid(-1, &status, kChanges); id > 0; id = waitpid(-1, &status, kChanges)) {
      if (!running_.contains(id)) continue;
      if (WIFSTOPPED(status)) {
        stopped_.insert(id);
      } else if (WIFCONTINUED(status)) {
        stopped_.erase(id);
      } else {
        take_ended(id, status);
      }
    }
  }

  void take_ended(pid_t id, int status) {
    if (WIFSIGNALED(status) && is_stop_requested_ && asks_for_stop(WTERMSIG(status))) {
      // Before the rank was far enough to answer. The others find it lost, which is no failure.
      if (!std::exchange(is_stopped_, true)) {
        spdlog::info(
            "stopped by signal {} before a step was done, so there is no checkpoint to write; the same command starts "
            "again",
            WTERMSIG(status));
      }
      tell_all(SIGTERM);
    } else if (WIFSIGNALED(status)) {
      spdlog::error("rank {} was ended by signal {}", running_.at(id), WTERMSIG(status));
      if (!failed_) failed_ = ExitCode::kFailed;
    } else if (WEXITSTATUS(status) != 0 && !failed_) {
      failed_ = static_cast<ExitCode>(WEXITSTATUS(status));
    }
    running_.erase(id);
    stopped_.erase(id);
  }

  void tell_all(int signal) const {
    for (const auto& [id, rank] : running_) kill(id, signal);
  }

  const int64_t count_;
  sigset_t signals_{};
  std::map<pid_t, int64_t> running_;  // ranks
  std::set<pid_t> stopped_;           // of these, as by SIGSTOP
  std::optional<ExitCode> failed_;    // the first
  bool is_stop_requested_ = false;
  bool is_stopped_ = false;                       // a rank ended by the request itself, before its steps
  std::optional<Clock::time_point> interrupted_;  // first
};

}  // namespace

ExitCode launch_ranks(int64_t count) {
  return LocalRanks(count).wait();
}

void end_with_launcher() {
  const char* const launcher = std::getenv(kLauncherProcess);
  if (launcher == nullptr) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (std::to_string(getppid()) != launcher) throw run_error("--launch: the process that started this rank is gone");
}

}  // namespace vlmtrain::app
