#include "vlmtrain/base/apart.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "vlmtrain/base/error.h"

namespace vlmtrain {

namespace {

using ApartClock = std::chrono::steady_clock;

/// All that the copy does.
[[noreturn]] void be_the_copy(const std::function<void()>& work, const std::array<int, 2>& pipe, pid_t parent) {
  // A handler of the parent's would speak to its threads.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) std::signal(signal, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  dup2(pipe[1], STDOUT_FILENO);
  close(pipe[0]);
  close(pipe[1]);
  work();
  std::fflush(stdout);
  _exit(0);
}

/// Up to the end of what is written, or to `end`; whether the end of it was reached.
bool read_all(int descriptor, ApartClock::time_point end, std::string& text) {
  std::array<char, 4096> buffer{};
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - ApartClock::now()).count();
    if (left <= 0) return false;
    pollfd ready{.fd = descriptor, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, static_cast<int>(left)) <= 0) continue;
    const ssize_t count = read(descriptor, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    text.append(buffer.data(), static_cast<size_t>(count));
  }
}

/// False where the process does not end even so: one that waits for a driver cannot be ended.
bool has_ended(pid_t process, int& status, ApartClock::time_point end) {
  for (;;) {
    const pid_t found = waitpid(process, &status, WNOHANG);
    if (found == process || (found < 0 && errno != EINTR)) return true;
    if (ApartClock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

std::string ApartResult::ending() const {
  if (late) return "did not end in time";
  if (signal != 0) return fmt::format("was ended by signal {} ({})", signal, strsignal(signal));
  return fmt::format("ended with exit code {}", exit_code);
}

ApartResult do_apart(const std::function<void()>& work, double most_seconds) {
  std::array<int, 2> pipe{};
  if (pipe2(pipe.data(), O_CLOEXEC) != 0) throw run_error("no pipe can be made: {}", std::strerror(errno));
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t copy = fork();
  if (copy == 0) be_the_copy(work, pipe, parent);
  close(pipe[1]);
  if (copy < 0) {
    const int error = errno;
    close(pipe[0]);
    throw run_error("no further process can be started: {}; see ulimit -u", std::strerror(error));
  }
  ApartResult result;
  const auto end =
      ApartClock::now() + std::chrono::duration_cast<ApartClock::duration>(std::chrono::duration<double>(most_seconds));
  result.late = !read_all(pipe[0], end, result.out);
  close(pipe[0]);
  int status = 0;
  if (!result.late) result.late = !has_ended(copy, status, end);
  if (result.late) {
    kill(copy, SIGKILL);
    has_ended(copy, status, ApartClock::now() + std::chrono::seconds(1));
    return result;
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

}  // namespace vlmtrain
