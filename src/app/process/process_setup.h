#pragma once

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

/// Opens stdin, stdout and stderr where the caller has closed them. Else the next file that is
/// opened, such as a checkpoint, would get one of their numbers and be overwritten by messages.
/// Writing to a closed stdout is still an error. To be called at the program's start.
void reopen_closed_streams();

/// Flushes stdout. Returns `code`, or kFailed after a message where the output cannot be written,
/// since its reader has no result then. kStopped stays, because its checkpoint is written.
ExitCode flush_stdout(ExitCode code);

/// Makes OpenMP threads of executed programs spin for some ten microseconds and then sleep while
/// they wait. By default they spin for milliseconds: where loader threads need a core, steps of 30
/// ms were seen to take seconds. Threads that sleep at once are woken twenty thousand times in a
/// step of short parallel regions, which took half of the step (docs/benchmarks/cpu-speed.md).
/// Returns false, and changes nothing, where the user has set OMP_WAIT_POLICY or GOMP_SPINCOUNT.
bool set_openmp_wait_policy();

/// Executes the program again where set_openmp_wait_policy() changes something, since OpenMP reads
/// its settings before main; the front has done so already. For commands that compute on the CPU,
/// before anything else.
void restart_with_openmp_wait_policy();

}  // namespace vlmtrain::app
