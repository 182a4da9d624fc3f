#pragma once

#include <cstdint>
#include <string_view>

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

/// The variable of the environment that names what started a rank.
inline constexpr const char* kLauncherVariable = "VLMTRAIN_LAUNCHER";
/// distributed::Launch::launcher of ranks that launch_ranks() has started, which have its arguments.
inline constexpr const char* kLaunchFlag = "--launch";

/// Starts this very command `count` times, as the ranks of one run on this machine, each told so by torchrun's
/// variables, and waits for them. What asks a run to stop is passed on to all. The processor's cores are shared among
/// them unless OMP_NUM_THREADS is set. Returns what the first rank that failed returned, else what all did.
ExitCode launch_ranks(int64_t count);

/// A rank that launch_ranks() started ends with it.
void exit_when_launcher_exits();

/// From here on signals that ask for a stop end the process at once, without a file half written: `train` with kStopped
/// until its steps begin (train/stop_request.h), the other commands as the signal itself would.
void exit_on_signal(std::string_view command);

}  // namespace vlmtrain::app
