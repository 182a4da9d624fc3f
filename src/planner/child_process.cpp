#include "planner/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/program.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::planner {

namespace {

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

/// What a child is told of its parent: the kernel ends it with the thread that started it, which has to be the one that
/// lasts.
pid_t parent_to_die_with() {
  return gettid() == getpid() ? getpid() : 0;
}

/// How a child that is dead, or about to be, has ended.
std::string ending_of(pid_t process) {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOWAIT) != 0) return "ended";
  if (info.si_code == CLD_EXITED) return fmt::format("ended with exit code {}", info.si_status);
  return fmt::format("was ended by signal {}{}", info.si_status,
                     info.si_status == SIGKILL ? " (the kernel sends it where memory is short)" : "");
}

}  // namespace

std::optional<std::string> read_line(std::FILE* file) {
  char* line = nullptr;
  size_t capacity = 0;
  const ssize_t length = getline(&line, &capacity, file);
  const std::unique_ptr<char, decltype(&std::free)> owner(line, std::free);
  if (length < 0) return std::nullopt;
  return std::string(line, static_cast<size_t>(length));
}

void write_line(std::FILE* file, const nlohmann::json& json) {
  std::fputs((io::json_text(json) + "\n").c_str(), file);
  std::fflush(file);
}

ChildProcess::ChildProcess(const VirtualCard& card) {
  require_addresses();
  const Ends requests = make_connection();
  const Ends answers = make_connection();
  requests_.set(requests.ours);
  answers_.reset(fdopen(answers.ours, "r"));

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, requests.theirs, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, answers.theirs, STDOUT_FILENO);
  std::vector<std::string> arguments{"vlmtrain", "rehearse"};
  const auto of_card = environment_of(card);
  std::map<std::string, std::string> changes(of_card.begin(), of_card.end());
  changes[kParentVariable] = std::to_string(parent_to_die_with());
  std::vector<std::string> environment = environment_with(changes, reaches_rehearsals);
  const int error = posix_spawn(&process_, "/proc/self/exe", &actions, SpawnAttributes().get(),
                                exec_pointers(arguments).data(), exec_pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  close(requests.theirs);
  close(answers.theirs);
  if (error != 0) throw run_error("the rehearsal process cannot be started: {}", std::strerror(error));
}

ChildProcess::Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

ChildProcess::~ChildProcess() {
  end();
  waitpid(process_, nullptr, 0);
}

void ChildProcess::end() {
  kill(process_, SIGKILL);
}

void ChildProcess::send(const nlohmann::json& message) {
  const std::string line = io::json_text(message) + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count = ::send(requests_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    sent += static_cast<size_t>(count);
  }
}

nlohmann::json ChildProcess::receive() {
  const auto line = read_line(answers_.get());
  if (!line) {
    throw InternalError(
        fmt::format("the rehearsal process {} without an answer; its reason is above", ending_of(process_)));
  }
  auto answer = nlohmann::json::parse(*line);
  if (const auto error = answer.find("error"); error != answer.end()) {
    throw UserError(static_cast<ExitCode>(error->at("code").get<int>()), error->at("message").get<std::string>());
  }
  return answer;
}

}  // namespace vlmtrain::planner
