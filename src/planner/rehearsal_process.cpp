#include "vlmtrain/planner/rehearsal_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "planner/protocol.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/program.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::planner {

namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

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

/// Nothing at the end of the file.
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

}  // namespace

class RehearsalProcess::Child {
 public:
  explicit Child(const VirtualCard& card) {
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

  ~Child() {
    requests_.reset();  // the end of its input ends it
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void send(const nlohmann::json& message) { write_line(requests_.get(), message); }

  nlohmann::json receive() {
    const auto line = read_line(answers_.get());
    if (!line) throw InternalError("the rehearsal process ended without an answer; its reason is above");
    auto answer = nlohmann::json::parse(*line);
    if (const auto error = answer.find("error"); error != answer.end()) {
      throw UserError(static_cast<ExitCode>(error->at("code").get<int>()), error->at("message").get<std::string>());
    }
    return answer;
  }

 private:
  File requests_{nullptr, std::fclose};
  File answers_{nullptr, std::fclose};
  pid_t process_ = -1;
};

RehearsalProcess::RehearsalProcess(const Job& job, const VirtualCard& card) {
  // A child that died is seen when its answer is missing, not by a signal.
  std::signal(SIGPIPE, SIG_IGN);
  child_ = std::make_unique<Child>(card);
  set_job(job);
}

RehearsalProcess::~RehearsalProcess() = default;

void RehearsalProcess::set_job(const Job& job) {
  child_->send({{"job", job}});
}

Outcome RehearsalProcess::rehearse(const RehearsalRequest& request) {
  child_->send({{"request", request}});
  return child_->receive().get<Outcome>();
}

void serve_rehearsals() {
  const at::Device device = memory::open_device("cuda");
  Job job;
  while (const auto line = read_line(stdin)) {
    const auto message = nlohmann::json::parse(*line);
    if (message.contains("job")) {
      job = message["job"].get<Job>();
      continue;
    }
    try {
      write_line(stdout, rehearse(job, message.at("request").get<RehearsalRequest>(), device));
    } catch (const UserError& error) {
      write_line(stdout, {{"error", {{"code", static_cast<int>(error.code())}, {"message", error.what()}}}});
    }
  }
}

}  // namespace vlmtrain::planner
