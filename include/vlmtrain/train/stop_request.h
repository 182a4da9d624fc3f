#pragma once

#include <functional>

namespace vlmtrain::train {

/// Seconds after the first SIGINT within which further ones are the same request. One Ctrl-C
/// reaches a process from the terminal and from each launcher that forwards it.
constexpr double kInterruptWindowSeconds = 1;

/// Makes SIGINT, SIGTERM, SIGHUP (closed terminal), SIGPIPE (closed output) and SIGUSR1 (SLURM's
/// warning before the time limit) request a stop. SIGINT, SIGHUP and SIGPIPE stay ignored if
/// they were at the start, as under nohup. A SIGINT more than kInterruptWindowSeconds after the
/// first one ends the process at once.
///
/// Until enable_graceful_stop() a signal calls `on_stop` on a thread of its own, which has to end
/// the process; without `on_stop` the signal is only recorded. Delivers what block_stop_signals()
/// holds back. REQUIRES: called once per process, on the main thread.
void install_stop_handlers(std::function<void(int signal)> on_stop = {});

/// Holds back stop signals until install_stop_handlers(), also in a program that this process
/// executes.
void block_stop_signals();

/// Makes later signals be recorded only. Does not return if the process is already exiting.
void enable_graceful_stop();

/// Returns the signal that requested the stop, or 0. Thread-safe.
int stop_signal();

/// Blocks forever if a stop signal is ending the process, so that consequences on another
/// thread, such as a child that the same signal ended, are not reported as errors. Else returns at
/// once.
void wait_if_exiting();

}  // namespace vlmtrain::train
