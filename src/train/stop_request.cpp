#include "vlmtrain/train/stop_request.h"

#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <thread>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

namespace {

// What a signal handler may touch.
volatile sig_atomic_t received_signal = 0;
volatile sig_atomic_t wake_up = -1;  // the end of a pipe that it writes to
timespec first_interrupt{};          // by CLOCK_MONOTONIC; touched by the handler of SIGINT only

double seconds_since_first_interrupt() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (first_interrupt.tv_sec == 0 && first_interrupt.tv_nsec == 0) first_interrupt = now;
  constexpr double kNanosecond = 1e-9;
  return static_cast<double>(now.tv_sec - first_interrupt.tv_sec) +
         kNanosecond * static_cast<double>(now.tv_nsec - first_interrupt.tv_nsec);
}

void remember(int signal) {
  const int error = errno;
  if (signal == SIGINT && seconds_since_first_interrupt() > kSecondsOfOneInterrupt) {
    ::signal(SIGINT, SIG_DFL);
    raise(SIGINT);  // delivered when the handler returns
    errno = error;
    return;
  }
  received_signal = signal;
  if (wake_up >= 0) {
    [[maybe_unused]] const ssize_t written = write(static_cast<int>(wake_up), "!", 1);
  }
  errno = error;
}

/// A handler on the normal stack that interrupts a product on the CPU corrupts memory, as if oneDNN's generated code
/// used what lies below the stack pointer (docs/benchmarks/slurm.md).
void give_handlers_their_own_stack() {
  static std::array<std::byte, 64 * 1024> memory;
  stack_t stack{};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  sigaltstack(&stack, nullptr);
}

void handle(int signal) {
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  sigaction(signal, &action, nullptr);
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

/// Answers a stop at once, until the steps begin.
class Leaver {
 public:
  void start(std::function<void(int)> leave) {
    leave_ = std::move(leave);
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
      throw run_error("no pipe can be made: {}", std::strerror(errno));
    fcntl(ends[0], F_SETFL, 0);  // the handler must not wait, its reader has to
    wake_up = ends[1];
    // Handlers have a stack of their own on the main thread only.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this, pipe = ends[0]] { watch(pipe); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void retire() {
    const std::lock_guard lock(mutex_);
    leave_ = nullptr;
  }

  void wait() {
    {
      const std::lock_guard lock(mutex_);
      if (!leave_ || received_signal == 0) return;
    }
    for (;;) pause();
  }

 private:
  void watch(int pipe) {
    char byte = 0;
    while (read(pipe, &byte, 1) == 1) {
      const std::lock_guard lock(mutex_);
      if (leave_) leave_(static_cast<int>(received_signal));
    }
  }

  std::mutex mutex_;  // held while the process is left
  std::function<void(int)> leave_;
};

/// Never destroyed: its thread ends with the process.
Leaver& leaver() {
  static auto* const only = new Leaver;
  return *only;
}

}  // namespace

void watch_stop_signals(std::function<void(int signal)> leave) {
  received_signal = 0;
  first_interrupt = {};
  give_handlers_their_own_stack();
  if (leave) leaver().start(std::move(leave));
  for (const int signal : {SIGTERM, SIGUSR1}) handle(signal);
  for (const int signal : {SIGINT, SIGHUP, SIGPIPE}) {
    if (!is_ignored(signal)) handle(signal);
  }
  const sigset_t held = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &held, nullptr);
  leaver().wait();  // what was held is answered by another thread
}

void hold_stop_signals() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void stop_between_steps() {
  leaver().retire();
}

int stop_signal() {
  return static_cast<int>(received_signal);
}

void wait_if_leaving() {
  leaver().wait();
}

}  // namespace vlmtrain::train
