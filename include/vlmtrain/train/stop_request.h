#pragma once

#include <functional>

namespace vlmtrain::train {

/// Seconds after the first SIGINT within which further ones count as the same request. After one
/// Ctrl-C a process gets SIGINT from the terminal and from each launcher that forwards it. Not
/// tuned.
constexpr double kInterruptWindowSeconds = 1;

/// Makes SIGINT, SIGTERM, SIGHUP (closed terminal), SIGPIPE (closed output) and SIGUSR1 (SLURM's
/// warning before the time limit) request a stop. SIGINT, SIGHUP and SIGPIPE remain ignored if they
/// were ignored at the start, as with nohup. A SIGINT more than kInterruptWindowSeconds after the
/// first one ends the process at once.
///
/// Until enable_graceful_stop() is called, a signal calls `on_stop` on a dedicated thread;
/// `on_stop` has to end the process. Without `on_stop` the signal is only recorded. Unblocks the
/// signals that block_stop_signals() blocked. REQUIRES: called once per process, on the main
/// thread.
void install_stop_handlers(std::function<void(int signal)> on_stop = {});

/// Blocks the stop signals of the calling thread until install_stop_handlers(). A program that this
/// process executes inherits the blocked signals.
void block_stop_signals();

/// From now on signals are only recorded, for get_stop_signal(). Does not return if the process is
/// already exiting.
void enable_graceful_stop();

/// Returns the signal that requested the stop, or 0. Thread-safe.
int get_stop_signal();

/// Blocks forever if a stop signal is ending the process; otherwise returns immediately. Called
/// before an error is reported that the signal may have caused, such as a child that the same
/// signal ended.
void wait_forever_if_exiting();

}  // namespace vlmtrain::train
