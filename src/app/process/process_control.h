#pragma once

#include <cstdint>
#include <string_view>

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

/// Environment variable that names the launcher of a rank.
inline constexpr const char* kLauncherEnvVar = "VLMTRAIN_LAUNCHER";

/// The value of kLauncherEnvVar in ranks that launch_ranks() starts. They have the arguments of
/// the launcher, including this flag, but must not start ranks themselves.
inline constexpr const char* kLocalLauncherName = "--nproc-per-node";

/// Starts the program `num_ranks` times with the arguments of this process, as the ranks of one run
/// on this machine, with torchrun's environment variables, and waits for them. Forwards stop
/// signals. Divides the processor's cores among the ranks unless OMP_NUM_THREADS is set. Returns
/// kStopped if a stop was requested before the first step, else the exit code of the first rank
/// that failed, else kSuccess. Throws UserError (kFailed) if a rank cannot be started. Blocks the
/// stop signals in the calling thread.
ExitCode launch_ranks(int64_t num_ranks);

/// Makes this process receive SIGTERM when its launcher exits, if launch_ranks() started it; does
/// nothing otherwise. Throws UserError (kFailed) if the launcher has already exited.
void exit_when_launcher_exits();

/// Makes stop signals end the process at once, after removing incomplete files. `train` exits with
/// kStopped until its steps begin and then stops gracefully (train/stop_request.h); other commands
/// end by the signal itself. Call once, on the main thread. `command` is the name of the command.
void exit_on_signal(std::string_view command);

}  // namespace vlmtrain::app
