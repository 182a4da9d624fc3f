#include "planner/dry_run/child_process.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <thread>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

namespace {

/// Returns how a child ended, such as "ended with exit code 1". Waits for its end, but does not
/// reap it.
std::string describe_exit(pid_t process) {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOWAIT) != 0) return "ended";
  if (info.si_code == CLD_EXITED) return fmt::format("ended with exit code {}", info.si_status);
  return fmt::format("was killed by signal {}{}", info.si_status,
                     info.si_status == SIGKILL ? " (sent by the kernel when memory runs out)" : "");
}

}  // namespace

std::optional<std::string> read_line(std::FILE* file) {
  char* line = nullptr;
  size_t capacity = 0;
  const ssize_t length = getline(&line, &capacity, file);
  const std::unique_ptr<char, decltype(&std::free)> line_owner(line, std::free);
  if (length <= 0 || line[length - 1] != '\n') return std::nullopt;  // the writer died
  return std::string(line, static_cast<size_t>(length));
}

void write_json_line(std::FILE* file, const nlohmann::json& json) {
  std::fputs((io::to_json_string(json) + "\n").c_str(), file);
  std::fflush(file);
}

ChildProcess::ChildProcess(const VirtualGpu& gpu, size_t num_workers) {
  check_address_space();
  const auto inherited_child = take_inherited_child();
  const SpawnedChild child = inherited_child ? *inherited_child : spawn_child(get_program_path(), num_workers);
  child_pid_ = child.pid;
  for (const int connection : child.worker_fds) connections_.emplace_back(fdopen(connection, "r"), std::fclose);
  send({{"gpu", make_gpu_environment(gpu)}});
}

ChildProcess::~ChildProcess() {
  terminate();
  waitpid(child_pid_, nullptr, 0);
}

void ChildProcess::terminate() {
  kill(child_pid_, SIGKILL);
}

void ChildProcess::send(const nlohmann::json& message, size_t worker) {
  const std::string line = io::to_json_string(message) + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count =
        ::send(fileno(connections_[worker].get()), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    sent += static_cast<size_t>(count);
  }
}

nlohmann::json ChildProcess::receive() {
  if (auto answer = try_receive(0)) return *std::move(answer);
  throw InternalError(
      fmt::format("the dry-run process {} without an answer; see its messages above", describe_exit(child_pid_)));
}

std::optional<nlohmann::json> ChildProcess::try_receive(size_t worker) {
  const auto line = read_line(connections_[worker].get());
  if (!line) return std::nullopt;
  auto answer = nlohmann::json::parse(*line);
  if (const auto error = answer.find("error"); error != answer.end()) {
    throw UserError(static_cast<ExitCode>(error->at("code").get<int>()), error->at("message").get<std::string>());
  }
  return answer;
}

bool ChildProcess::has_answered(size_t worker) const {
  // Answers are read as whole lines, so that the stream's buffer holds no part of the next one.
  pollfd poll_descriptor{.fd = fileno(connections_[worker].get()), .events = POLLIN, .revents = 0};
  return poll(&poll_descriptor, 1, /*timeout=*/0) > 0;
}

bool ChildProcess::discard_answer(size_t worker) {
  return read_line(connections_[worker].get()).has_value();
}

namespace {

/// Interval of the checks for the parent and the memory limit. Shorter intervals cost CPU time,
/// longer ones allow the process to exceed its limit by more. Not tuned.
constexpr int kPollIntervalMilliseconds = 100;

void exit_if_orphaned(pid_t parent_pid) {
  if (parent_pid != 0 && getppid() != parent_pid) _exit(static_cast<int>(ExitCode::kFailed));
}

void exit_with_memory_error(int64_t bytes, int64_t max_bytes) {
  const std::string message = fmt::format(
      "the dry run takes {} of host memory, more than its limit of {}; check the sizes in the model's config.json",
      format_bytes(bytes), format_bytes(max_bytes));
  flockfile(stdout);  // never unlocked: nothing may follow this answer
  write_json_line(stdout, {{"error", {{"code", static_cast<int>(ExitCode::kFailed)}, {"message", message}}}});
  _exit(static_cast<int>(ExitCode::kFailed));
}

[[noreturn]] void run_termination_watch_loop(const TerminationConditions& conditions) {
  for (;;) {
    pollfd poll_descriptor{.fd = STDIN_FILENO, .events = 0, .revents = 0};  // no events: POLLHUP is always reported
    poll(&poll_descriptor, 1, kPollIntervalMilliseconds);
    if ((poll_descriptor.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) _exit(static_cast<int>(ExitCode::kSuccess));
    exit_if_orphaned(conditions.parent_pid);
    const int64_t bytes = memory::get_resident_bytes();
    if (bytes > conditions.max_host_bytes) exit_with_memory_error(bytes, conditions.max_host_bytes);
  }
}

}  // namespace

void set_parent_death_signal(pid_t parent_pid) {
  if (parent_pid == 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  exit_if_orphaned(parent_pid);  // the parent may have died before prctl()
}

void watch_parent(const TerminationConditions& conditions) {
  set_parent_death_signal(conditions.parent_pid);
  std::ofstream("/proc/self/oom_score_adj") << 1000;  // the maximum (proc(5))
  std::thread([conditions] { run_termination_watch_loop(conditions); }).detach();
}

}  // namespace vlmtrain::planner
