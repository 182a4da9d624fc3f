#pragma once

#include <functional>

namespace vlmtrain::train {

/// One Ctrl-C may reach a process several times: from the terminal and from each launcher that forwards it. What comes
/// within so many seconds of the first SIGINT is the same request.
constexpr double kInterruptWindowSeconds = 1;

/// From here on SIGINT, SIGTERM, SIGHUP (the terminal is gone), SIGPIPE (nobody reads the output any more) and SIGUSR1
/// (SLURM's warning before the time limit) ask for a stop. SIGINT, SIGHUP and SIGPIPE stay ignored where they were when
/// the program started, as under nohup. A SIGINT that comes more than kInterruptWindowSeconds after the first one ends
/// the process at once.
///
/// Until enable_graceful_stop() a stop is answered at once: `on_stop` is called with the signal on a thread of its own,
/// whatever the others are doing, and has to end the process. Without `on_stop` a signal is only noted. For a program's
/// main thread, once; process-wide. Delivers what block_stop_signals() holds.
void install_stop_handlers(std::function<void(int signal)> on_stop = {});

/// Until install_stop_handlers(), also in a program that this process becomes, signals that ask for a stop are pending.
void block_stop_signals();

/// From here on a signal is only noted. Does not return where the process is being left already.
void enable_graceful_stop();

/// The signal that asked for a stop, or 0.
int stop_signal();

/// Does not return where a stop was asked for that is answered at once: what another thread meets then, such as a child
/// that the same signal ended, is no error to report.
void wait_if_exiting();

}  // namespace vlmtrain::train
