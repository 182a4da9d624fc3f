#include "vlmtrain/planner/spawned_child.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

namespace {

// Environment variables of the child: the fields of SpawnParams.
constexpr const char* kParentPidVariable = "VLMTRAIN_DRY_RUN_PARENT";
constexpr const char* kWorkerFdsVariable = "VLMTRAIN_DRY_RUN_WORKERS";
/// Environment variable of a program that inherits a child: its process id and connections.
constexpr const char* kInheritedChildVariable = "VLMTRAIN_DRY_RUN_STARTED";

struct SocketPair {
  int parent_fd;
  int child_fd;
};

/// Returns connected sockets with close-on-exec, so that other children do not inherit them.
/// Sockets are used instead of pipes, since they allow writing to a dead child without SIGPIPE.
SocketPair make_socket_pair() {
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    throw run_error("cannot connect to a dry-run process: {}", std::strerror(errno));
  }
  return {sockets[0], sockets[1]};
}

/// Attributes that block the signals that stop a run, which a terminal sends to the child too, and
/// restore the default action of SIGPIPE.
class SpawnAttributes {
 public:
  SpawnAttributes() {
    sigset_t blocked_signals;
    sigset_t broken_pipe_signals;
    sigemptyset(&blocked_signals);
    sigemptyset(&broken_pipe_signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&blocked_signals, signal);
    sigaddset(&broken_pipe_signals, SIGPIPE);
    posix_spawnattr_init(&spawn_attributes_);
    posix_spawnattr_setflags(&spawn_attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&spawn_attributes_, &blocked_signals);
    posix_spawnattr_setsigdefault(&spawn_attributes_, &broken_pipe_signals);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&spawn_attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;

  const posix_spawnattr_t* get() const { return &spawn_attributes_; }

 private:
  posix_spawnattr_t spawn_attributes_{};
};

/// The file descriptors that the child inherits.
class SpawnFileActions {
 public:
  SpawnFileActions() { posix_spawn_file_actions_init(&file_actions_); }
  ~SpawnFileActions() { posix_spawn_file_actions_destroy(&file_actions_); }
  SpawnFileActions(const SpawnFileActions&) = delete;
  SpawnFileActions& operator=(const SpawnFileActions&) = delete;

  void duplicate_descriptor(int from, int to) { posix_spawn_file_actions_adddup2(&file_actions_, from, to); }
  /// Keeps the descriptor open in the child: posix_spawn clears close-on-exec if source and target
  /// are equal.
  void inherit_descriptor(int descriptor) { duplicate_descriptor(descriptor, descriptor); }
  const posix_spawn_file_actions_t* get() const { return &file_actions_; }

 private:
  posix_spawn_file_actions_t file_actions_{};
};

/// Returns this process if the main thread calls, otherwise 0. The kernel kills a child when the
/// thread that spawned it ends (PR_SET_PDEATHSIG), which may be too early for other threads.
pid_t get_pid_on_main_thread() {
  return gettid() == getpid() ? getpid() : 0;
}

/// Returns the integers in a text, which are separated by spaces. Returns none for null.
std::vector<int> parse_ints(const char* text) {
  std::istringstream words(text != nullptr ? text : "");
  std::vector<int> numbers;
  for (int number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

/// Returns whether `pid` is a child of this process, running or not yet reaped.
bool is_child(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

}  // namespace

size_t choose_num_workers() {
  return std::thread::hardware_concurrency() > 1 ? 2 : 1;
}

SpawnedChild spawn_child(const std::filesystem::path& program, size_t num_workers) {
  const auto preload_variables = make_preload_environment();
  std::map<std::string, std::string> environment_variables(preload_variables.begin(), preload_variables.end());
  SpawnedChild child;
  std::vector<int> child_fds;
  for (size_t i = 0; i < num_workers; ++i) {
    const SocketPair sockets = make_socket_pair();
    child.worker_fds.push_back(sockets.parent_fd);
    child_fds.push_back(sockets.child_fd);
  }
  SpawnFileActions file_actions;
  const std::vector<int> inherited_fds(child_fds.begin() + 1, child_fds.end());
  for (const int connection : inherited_fds) file_actions.inherit_descriptor(connection);
  file_actions.duplicate_descriptor(child_fds.front(), STDIN_FILENO);
  file_actions.duplicate_descriptor(child_fds.front(), STDOUT_FILENO);
  environment_variables[kParentPidVariable] = std::to_string(get_pid_on_main_thread());
  environment_variables[kWorkerFdsVariable] = fmt::format("{}", fmt::join(inherited_fds, " "));
  std::vector<std::string> arguments{"vlmtrain", "dry-run"};
  std::vector<std::string> environment = make_environment(environment_variables, is_passed_to_dry_runs);
  const int error =
      posix_spawn(&child.pid, program.c_str(), file_actions.get(), SpawnAttributes().get(),
                  make_null_terminated_array(arguments).data(), make_null_terminated_array(environment).data());
  for (const int connection : child_fds) close(connection);
  if (error == 0) return child;
  for (const int connection : child.worker_fds) close(connection);
  throw run_error("cannot start the dry-run process: {}", std::strerror(error));
}

void pass_child_through_exec(const SpawnedChild& child) {
  for (const int connection : child.worker_fds) fcntl(connection, F_SETFD, 0);
  setenv(kInheritedChildVariable, fmt::format("{} {}", child.pid, fmt::join(child.worker_fds, " ")).c_str(),
         /*overwrite=*/1);
}

std::optional<SpawnedChild> take_inherited_child() {
  const auto values = parse_ints(std::getenv(kInheritedChildVariable));
  unsetenv(kInheritedChildVariable);
  if (values.size() < 2 || !is_child(values.front())) return std::nullopt;
  SpawnedChild child{.pid = values.front(), .worker_fds = {values.begin() + 1, values.end()}};
  for (const int connection : child.worker_fds) fcntl(connection, F_SETFD, FD_CLOEXEC);
  return child;
}

SpawnParams read_spawn_params() {
  const auto parent = parse_ints(std::getenv(kParentPidVariable));
  return {.parent_pid = parent.empty() ? 0 : parent.front(), .worker_fds = parse_ints(std::getenv(kWorkerFdsVariable))};
}

void prestart_dry_run_process(const std::filesystem::path& program) {
  try {
    pass_child_through_exec(spawn_child(program, choose_num_workers()));
  } catch (const UserError&) {  // `program` runs into the same error and reports it
  }
}

}  // namespace vlmtrain::planner
