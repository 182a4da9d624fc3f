#include "planner/spawned_child.h"

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
#include "vlmtrain/base/program.h"
#include "vlmtrain/planner/virtual_card.h"

namespace vlmtrain::planner {

namespace {

// In a child's environment.
constexpr const char* kParentVariable = "VLMTRAIN_REHEARSES_FOR";
constexpr const char* kWorkersVariable = "VLMTRAIN_REHEARSAL_WORKERS";
/// In that of a program whose process started one before it became that program.
constexpr const char* kLeftVariable = "VLMTRAIN_REHEARSAL_STARTED";

struct Ends {
  int ours;
  int theirs;
};

/// Not inherited by other children. A socket and no pipe: to write to a child that has died is then no signal.
Ends make_connection() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw run_error("no connection to a rehearsal process can be made: {}", std::strerror(errno));
  }
  return {ends[0], ends[1]};
}

/// In which the child sees no request to stop: that is for the run it belongs to. It dies of a broken pipe.
class SpawnAttributes {
 public:
  SpawnAttributes() {
    sigset_t requests;
    sigset_t broken_pipe;
    sigemptyset(&requests);
    sigemptyset(&broken_pipe);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&requests, signal);
    sigaddset(&broken_pipe, SIGPIPE);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes_, &requests);
    posix_spawnattr_setsigdefault(&attributes_, &broken_pipe);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;

  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_{};
};

/// What becomes of the child's file descriptors.
class SpawnActions {
 public:
  SpawnActions() { posix_spawn_file_actions_init(&actions_); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;

  void copy(int from, int to) { posix_spawn_file_actions_adddup2(&actions_, from, to); }
  /// To the same number: it is not closed by exec then.
  void keep(int descriptor) { copy(descriptor, descriptor); }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

/// What a child is told of its parent: the kernel ends it with the thread that started it, which has to be the one that
/// lasts.
pid_t parent_to_die_with() {
  return gettid() == getpid() ? getpid() : 0;
}

std::vector<int> numbers_in(const char* text) {
  std::istringstream words(text != nullptr ? text : "");
  std::vector<int> numbers;
  for (int number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

/// Whether a process is one of this process's children, dead or alive.
bool is_child(pid_t process) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

}  // namespace

size_t workers_that_pay() {
  return std::thread::hardware_concurrency() > 1 ? 2 : 1;
}

SpawnedChild spawn_child(const std::filesystem::path& program, size_t workers) {
  const auto of_stand_ins = environment_for_virtual_cards();
  std::map<std::string, std::string> changes(of_stand_ins.begin(), of_stand_ins.end());
  SpawnedChild child;
  std::vector<int> theirs;
  for (size_t i = 0; i < workers; ++i) {
    const Ends ends = make_connection();
    child.connections.push_back(ends.ours);
    theirs.push_back(ends.theirs);
  }
  SpawnActions actions;
  const std::vector<int> further(theirs.begin() + 1, theirs.end());
  for (const int connection : further) actions.keep(connection);
  actions.copy(theirs.front(), STDIN_FILENO);
  actions.copy(theirs.front(), STDOUT_FILENO);
  changes[kParentVariable] = std::to_string(parent_to_die_with());
  changes[kWorkersVariable] = fmt::format("{}", fmt::join(further, " "));
  std::vector<std::string> arguments{"vlmtrain", "rehearse"};
  std::vector<std::string> environment = environment_with(changes, reaches_rehearsals);
  const int error = posix_spawn(&child.process, program.c_str(), actions.get(), SpawnAttributes().get(),
                                exec_pointers(arguments).data(), exec_pointers(environment).data());
  for (const int connection : theirs) close(connection);
  if (error == 0) return child;
  for (const int connection : child.connections) close(connection);
  throw run_error("the rehearsal process cannot be started: {}", std::strerror(error));
}

void leave_for_exec(const SpawnedChild& child) {
  for (const int connection : child.connections) fcntl(connection, F_SETFD, 0);
  setenv(kLeftVariable, fmt::format("{} {}", child.process, fmt::join(child.connections, " ")).c_str(),
         /*overwrite=*/1);
}

std::optional<SpawnedChild> left_child() {
  const auto numbers = numbers_in(std::getenv(kLeftVariable));
  unsetenv(kLeftVariable);
  if (numbers.size() < 2 || !is_child(numbers.front())) return std::nullopt;
  SpawnedChild child{.process = numbers.front(), .connections = {numbers.begin() + 1, numbers.end()}};
  for (const int connection : child.connections) fcntl(connection, F_SETFD, FD_CLOEXEC);
  return child;
}

SpawnedAs spawned_as() {
  const auto parent = numbers_in(std::getenv(kParentVariable));
  return {.parent = parent.empty() ? 0 : parent.front(), .connections = numbers_in(std::getenv(kWorkersVariable))};
}

}  // namespace vlmtrain::planner
