#pragma once

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

/// Opens /dev/null for each of stdin, stdout and stderr that is closed. Otherwise the next file to
/// be opened, such as a checkpoint, would get its descriptor, and messages would overwrite the
/// file. Writing to a stdout that was closed remains an error. Call at the start of the program,
/// before any file is opened.
void reopen_closed_streams();

/// Flushes stdout and returns `code`. If the output cannot be written, its reader has no result, so
/// this prints an error message on stderr and returns kFailed; but kStopped remains kStopped,
/// because the checkpoint is written.
ExitCode flush_stdout(ExitCode code);

/// Sets environment variables that make waiting OpenMP threads spin for some ten microseconds and
/// then sleep, in programs that this process executes later. By default threads spin for
/// milliseconds and take cores from loader threads, which slows steps down many times. Threads that
/// sleep at once are woken so often in short parallel regions that steps take twice as long
/// (docs/benchmarks/cpu.md). Returns false and changes nothing if the user has set
/// OMP_WAIT_POLICY or GOMP_SPINCOUNT.
bool set_openmp_wait_policy();

/// Calls set_openmp_wait_policy() and, if it changed the environment, executes the program again,
/// because OpenMP reads its settings before main(). Does nothing in a process that `vlmtrain` has
/// executed (src/app/front/main.cpp), which has set them. Call it in commands that compute on the CPU,
/// before stdin or a pipe is read and before threads start.
void restart_with_openmp_wait_policy();

}  // namespace vlmtrain::app
