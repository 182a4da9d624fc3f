#include "planner/parent_watch.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <thread>

#include "planner/dry_run/child_process.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/host.h"

namespace vlmtrain::planner {

namespace {

constexpr int kPollMilliseconds = 100;

void exit_without_parent(pid_t parent) {
  if (parent != 0 && getppid() != parent) _exit(static_cast<int>(ExitCode::kFailed));
}

void exit_out_of_memory(int64_t bytes, int64_t max_bytes) {
  const std::string message = fmt::format(
      "the rehearsal takes {} of this machine's memory, and {} is what it may take; is the model's configuration "
      "right?",
      format_bytes(bytes), format_bytes(max_bytes));
  flockfile(stdout);  // never unlocked: this is the last answer
  write_line(stdout, {{"error", {{"code", static_cast<int>(ExitCode::kFailed)}, {"message", message}}}});
  _exit(static_cast<int>(ExitCode::kFailed));
}

[[noreturn]] void run_watch_loop(const ParentWatch& watch) {
  for (;;) {
    pollfd requests{.fd = STDIN_FILENO, .events = 0, .revents = 0};  // its end is always told
    poll(&requests, 1, kPollMilliseconds);
    if ((requests.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) _exit(static_cast<int>(ExitCode::kSuccess));
    exit_without_parent(watch.parent);
    const int64_t bytes = memory::host_bytes();
    if (bytes > watch.max_host_bytes) exit_out_of_memory(bytes, watch.max_host_bytes);
  }
}

}  // namespace

void die_with_parent(pid_t parent) {
  if (parent == 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  exit_without_parent(parent);  // it may have died before that
}

void watch_parent(const ParentWatch& watch) {
  die_with_parent(watch.parent);
  std::ofstream("/proc/self/oom_score_adj") << 1000;
  std::thread([watch] { run_watch_loop(watch); }).detach();
}

}  // namespace vlmtrain::planner
