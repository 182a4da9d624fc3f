#pragma once

#include <cstdint>
#include <string_view>

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

/// Environment variable that names the launcher of a rank.
inline constexpr const char* kLauncherVariable = "VLMTRAIN_LAUNCHER";

/// Its value for ranks of launch_ranks(), which have the launcher's arguments.
inline constexpr const char* kLaunchFlag = "--nproc-per-node";

/// Starts this command `count` times, as the ranks of one run on this machine, with torchrun's
/// environment variables, and waits for them. Forwards stop signals. Divides the processor's cores
/// among the ranks unless OMP_NUM_THREADS is set. Returns the exit code of the first rank that
/// failed, else that of all.
ExitCode launch_ranks(int64_t count);

/// Makes a rank of launch_ranks() end with its launcher.
void exit_when_launcher_exits();

/// Makes stop signals end the process at once, without incomplete files: `train` with kStopped
/// until its steps begin (train/stop_request.h), other commands by the signal itself.
void exit_on_signal(std::string_view command);

}  // namespace vlmtrain::app
