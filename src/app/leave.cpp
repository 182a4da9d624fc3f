#include "app/leave.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/unfinished.h"
#include "vlmtrain/train/stop_request.h"

namespace vlmtrain::app {

namespace {

void exit_before_first_step(int signal) {
  [[maybe_unused]] const auto cleanup_lock = io::remove_temp_files();
  std::fprintf(stderr,
               "vlmtrain: stopped by signal %d before a step was done, so there is no checkpoint to write; the same "
               "command starts again\n",
               signal);
  _exit(static_cast<int>(ExitCode::kStopped));
}

/// Shells tell by it that a script is to end, too.
void exit_by_signal(int signal) {
  [[maybe_unused]] const auto cleanup_lock = io::remove_temp_files();
  ::signal(signal, SIG_DFL);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, signal);
  pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
  raise(signal);
  // A container's first process gets there: signals do not end it by themselves.
  constexpr int kSignalExitBase = 128;
  _exit(kSignalExitBase + signal);
}

}  // namespace

void exit_on_signal(std::string_view command) {
  if (command == "rehearse") return;  // the run that it belongs to ends it
  train::install_stop_handlers(command == "train" ? exit_before_first_step : exit_by_signal);
}

}  // namespace vlmtrain::app
