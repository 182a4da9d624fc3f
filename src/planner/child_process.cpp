#include "planner/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/program.h"

namespace vlmtrain::planner {

namespace {

struct Pipe {
  int read_end;
  int write_end;
};

/// Not inherited by other children.
Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw run_error("no pipe can be made: {}", std::strerror(errno));
  return {ends[0], ends[1]};
}

/// This process's environment with `changes`.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    bool changed = false;
    for (const auto& [name, value] : changes) changed |= text.starts_with(name + "=");
    if (!changed) entries.emplace_back(text);
  }
  for (const auto& [name, value] : changes) entries.push_back(name + "=" + value);
  return entries;
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
  std::fputs((json.dump() + "\n").c_str(), file);
  std::fflush(file);
}

ChildProcess::ChildProcess(const VirtualCard& card) {
  // A child that died is seen when its answer is missing, not by a signal.
  std::signal(SIGPIPE, SIG_IGN);
  const Pipe requests = make_pipe();
  const Pipe answers = make_pipe();
  requests_.reset(fdopen(requests.write_end, "w"));
  answers_.reset(fdopen(answers.read_end, "r"));

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, requests.read_end, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, answers.write_end, STDOUT_FILENO);
  std::vector<std::string> arguments{"vlmtrain", "rehearse"};
  std::vector<std::string> environment = environment_with(environment_of(card));
  const int error = posix_spawn(&process_, "/proc/self/exe", &actions, nullptr, exec_pointers(arguments).data(),
                                exec_pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  close(requests.read_end);
  close(answers.write_end);
  if (error != 0) throw run_error("the rehearsal process cannot be started: {}", std::strerror(error));
}

ChildProcess::~ChildProcess() {
  end();
  waitpid(process_, nullptr, 0);
}

void ChildProcess::end() {
  kill(process_, SIGKILL);
}

void ChildProcess::send(const nlohmann::json& message) {
  write_line(requests_.get(), message);
}

nlohmann::json ChildProcess::receive() {
  const auto line = read_line(answers_.get());
  if (!line) throw InternalError("the rehearsal process ended without an answer; its reason is above");
  auto answer = nlohmann::json::parse(*line);
  if (const auto error = answer.find("error"); error != answer.end()) {
    throw UserError(static_cast<ExitCode>(error->at("code").get<int>()), error->at("message").get<std::string>());
  }
  return answer;
}

}  // namespace vlmtrain::planner
