#pragma once

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

/// Gives stdin, stdout and stderr their numbers where the caller has closed them: else the next file that is opened,
/// such as a checkpoint, would have one of them, and be written over. What is printed on a closed stdout is still an
/// error. For the program's start.
void reopen_closed_streams();

/// Hands what was printed to the system. Returns `code`, or says why it cannot be written and returns kFailed: who
/// reads stdout has no result then. kStopped stays, for its checkpoint is written.
ExitCode flush_stdout(ExitCode code);

/// Makes OpenMP's threads, where they wait for each other, spin for some ten microseconds and then sleep, in programs
/// that this process becomes. By default they spin for milliseconds, and where something else needs a core (the
/// loader's threads do), a step that takes 30 ms has been seen to take seconds. Asleep at once, they are woken by the
/// kernel twenty thousand times a step of short segments, which took half of the step (docs/benchmarks/cpu-speed.md).
/// False, and nothing was changed, where the user has set OMP_WAIT_POLICY or GOMP_SPINCOUNT.
bool set_openmp_wait_policy();

/// OpenMP reads its settings before main: starts the program once more where set_openmp_wait_policy() changed them,
/// which the front has done before. For commands that compute on the CPU, before they do anything.
void restart_with_openmp_wait_policy();

}  // namespace vlmtrain::app
