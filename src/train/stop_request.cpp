#include "vlmtrain/train/stop_request.h"

#include <signal.h>

#include <array>
#include <cstddef>
#include <initializer_list>

namespace vlmtrain::train {

namespace {

// What a signal handler may touch.
volatile sig_atomic_t received_signal = 0;

void remember(int signal) {
  if (signal == SIGINT) ::signal(SIGINT, SIG_DFL);
  received_signal = signal;
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

}  // namespace

void watch_stop_signals() {
  give_handlers_their_own_stack();
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
}

int stop_signal() {
  return static_cast<int>(received_signal);
}

}  // namespace vlmtrain::train
