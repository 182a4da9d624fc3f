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

}  // namespace vlmtrain::app
