#include "app/leave.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/unfinished.h"
#include "vlmtrain/train/stop_request.h"

namespace vlmtrain::app {

namespace {

void leave_before_the_steps(int signal) {
  [[maybe_unused]] const auto nobody_writes = io::remove_unfinished();
  std::fprintf(stderr,
               "vlmtrain: stopped by signal %d before a step was done, so there is no checkpoint to write; the same "
               "command starts again\n",
               signal);
  _exit(static_cast<int>(ExitCode::kStopped));
}

/// Shells tell by it that a script is to end, too.
void end_by(int signal) {
  [[maybe_unused]] const auto nobody_writes = io::remove_unfinished();
  ::signal(signal, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  raise(signal);
  // A container's first process gets there: signals do not end it by themselves.
  constexpr int kEndedBySignal = 128;
  _exit(kEndedBySignal + signal);
}

}  // namespace

void leave_on_signals(std::string_view command) {
  if (command == "rehearse") return;  // the run that it belongs to ends it
  train::watch_stop_signals(command == "train" ? leave_before_the_steps : end_by);
}

}  // namespace vlmtrain::app
