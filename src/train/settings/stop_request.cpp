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

// Signal handlers may use only these variables.
volatile sig_atomic_t received_signal = 0;
volatile sig_atomic_t wake_pipe = -1;  // write end of the pipe to the waiting thread
timespec first_interrupt{};            // time of the first SIGINT (CLOCK_MONOTONIC); zero before it

/// Sets first_interrupt at the first call. Async-signal-safe.
double measure_seconds_since_interrupt() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (first_interrupt.tv_sec == 0 && first_interrupt.tv_nsec == 0) first_interrupt = now;
  constexpr double kSecondsPerNanosecond = 1e-9;
  return static_cast<double>(now.tv_sec - first_interrupt.tv_sec) +
         kSecondsPerNanosecond * static_cast<double>(now.tv_nsec - first_interrupt.tv_nsec);
}

/// The signal handler. Async-signal-safe; keeps errno.
void record_stop_signal(int signal) {
  const int error = errno;
  if (signal == SIGINT && measure_seconds_since_interrupt() > kInterruptWindowSeconds) {
    ::signal(SIGINT, SIG_DFL);
    raise(SIGINT);  // delivered when the handler returns
    errno = error;
    return;
  }
  received_signal = signal;
  if (wake_pipe >= 0) {
    [[maybe_unused]] const ssize_t written = write(static_cast<int>(wake_pipe), "!", 1);
  }
  errno = error;
}

/// Lets signal handlers of this thread run on their own stack. A handler on the normal stack
/// corrupts memory if it interrupts a matrix product on the CPU, as if oneDNN's generated code used
/// the stack below the stack pointer (tests/train/stop_request_test.cpp).
void install_alternate_signal_stack() {
  constexpr size_t kStackBytes = size_t{64} * 1024;  // far more than record_stop_signal() takes
  static std::array<std::byte, kStackBytes> memory;
  stack_t stack{};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  sigaltstack(&stack, nullptr);
}

void install_signal_handler(int signal) {
  struct sigaction handler_action {};
  handler_action.sa_handler = record_stop_signal;
  handler_action.sa_flags = SA_ONSTACK | SA_RESTART;
  sigaction(signal, &handler_action, nullptr);
}

bool is_signal_ignored(int signal) {
  struct sigaction handler_action {};
  return sigaction(signal, nullptr, &handler_action) == 0 && handler_action.sa_handler == SIG_IGN;
}

sigset_t make_stop_signal_set() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

/// The handling of stop signals before the steps begin: a thread calls `on_stop`, which ends the
/// process.
class ImmediateStopHandler {
 public:
  /// Starts the thread. Called once.
  void start_thread(std::function<void(int)> on_stop) {
    on_stop_ = std::move(on_stop);
    std::array<int, 2> pipe_descriptors{};
    if (pipe2(pipe_descriptors.data(), O_CLOEXEC | O_NONBLOCK) != 0)
      throw run_error("cannot create a pipe: {}; check the limit on open files (ulimit -n)", std::strerror(errno));
    fcntl(pipe_descriptors[0], F_SETFL, 0);  // the handler must not block, the reader has to
    wake_pipe = pipe_descriptors[1];
    // The new thread inherits a mask that blocks all signals, since only the main thread has the
    // alternate stack.
    sigset_t all_signals;
    sigset_t previous_signal_mask;
    sigfillset(&all_signals);
    pthread_sigmask(SIG_SETMASK, &all_signals, &previous_signal_mask);
    std::thread([this, pipe = pipe_descriptors[0]] { watch_pipe(pipe); }).detach();
    pthread_sigmask(SIG_SETMASK, &previous_signal_mask, nullptr);
  }

  /// Makes signals no longer end the process. Waits forever if one is ending it.
  void disable() {
    const std::lock_guard lock(mutex_);
    on_stop_ = nullptr;
  }

  /// Waits forever if a signal is ending the process.
  void wait() {
    {
      const std::lock_guard lock(mutex_);
      if (!on_stop_ || received_signal == 0) return;
    }
    for (;;) pause();
  }

 private:
  /// Calls on_stop_ for each byte that the handler writes.
  void watch_pipe(int pipe) {
    char byte = 0;
    while (read(pipe, &byte, 1) == 1) {
      const std::lock_guard lock(mutex_);
      if (on_stop_) on_stop_(static_cast<int>(received_signal));
    }
  }

  std::mutex mutex_;  // held while the process exits
  std::function<void(int)> on_stop_;
};

/// Returns the only instance. It is never destroyed, because its thread runs until the process
/// ends.
ImmediateStopHandler& get_immediate_stop_handler() {
  static auto* const instance = new ImmediateStopHandler;
  return *instance;
}

}  // namespace

void install_stop_handlers(std::function<void(int signal)> on_stop) {
  received_signal = 0;
  first_interrupt = {};
  install_alternate_signal_stack();
  if (on_stop) get_immediate_stop_handler().start_thread(std::move(on_stop));
  for (const int signal : {SIGTERM, SIGUSR1}) install_signal_handler(signal);
  for (const int signal : {SIGINT, SIGHUP, SIGPIPE}) {
    if (!is_signal_ignored(signal)) install_signal_handler(signal);
  }
  const sigset_t stop_signals = make_stop_signal_set();
  pthread_sigmask(SIG_UNBLOCK, &stop_signals, nullptr);
  get_immediate_stop_handler().wait();  // another thread handles signals that were delivered now
}

void block_stop_signals() {
  const sigset_t signals = make_stop_signal_set();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void enable_graceful_stop() {
  get_immediate_stop_handler().disable();
}

int get_stop_signal() {
  return static_cast<int>(received_signal);
}

void wait_forever_if_exiting() {
  get_immediate_stop_handler().wait();
}

}  // namespace vlmtrain::train
