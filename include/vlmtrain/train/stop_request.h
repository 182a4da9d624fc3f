#pragma once

namespace vlmtrain::train {

/// From here on SIGINT, SIGTERM and SIGUSR1 (SLURM's warning before the time limit) ask the run to stop after its step.
/// A second SIGINT ends the process at once. For a program's main thread; process-wide.
void watch_stop_signals();

/// The signal that asked for a stop, or 0.
int stop_signal();

}  // namespace vlmtrain::train
