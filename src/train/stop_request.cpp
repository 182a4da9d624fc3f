#include "vlmtrain/train/stop_request.h"

#include <csignal>
#include <initializer_list>

namespace vlmtrain::train {

namespace {

// What a signal handler may touch.
volatile std::sig_atomic_t received_signal = 0;

void remember(int signal) {
  if (signal == SIGINT) std::signal(SIGINT, SIG_DFL);
  received_signal = signal;
}

}  // namespace

void watch_stop_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, remember);
}

int stop_signal() {
  return received_signal;
}

}  // namespace vlmtrain::train
