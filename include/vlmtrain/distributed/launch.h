#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "vlmtrain/base/error.h"

namespace vlmtrain::distributed {

/// Maximum number of ranks of a run. A sanity check of environment variables, not a limit of the
/// implementation.
constexpr int64_t kMaxWorldSize = 4096;

/// The rank of this process in a run, and the address of rank 0.
struct LaunchInfo {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;        ///< index among the processes on this machine
  std::string master_address{};  ///< name or address of rank 0's machine
  int64_t master_port = 0;       ///< TCP port on which rank 0 listens
  std::string launcher{};        ///< for messages: "torchrun", "srun", or VLMTRAIN_LAUNCHER

  bool operator==(const LaunchInfo&) const = default;
};

/// Returns an environment variable, or nothing if it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

/// Parses the environment that a launcher sets. Returns nothing for a single process.
///
/// torchrun and other launchers set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
/// (PyTorch's names). In an srun step, SLURM's variables apply: rank 0 is on the first node, and
/// the port is MASTER_PORT, or derived from the job and the step. SLURM's variables outside of a
/// step belong to a batch script, which is a single process.
///
/// Throws UserError (kUsage) if there are several processes but no address of rank 0, as with
/// mpirun, or if the variables contradict each other.
std::optional<LaunchInfo> parse_launch_info(const EnvironmentLookup& environment);

/// Calls parse_launch_info() for this process's environment.
std::optional<LaunchInfo> read_launch_info();

/// Returns the first host of a SLURM node list (SLURM_STEP_NODELIST): "gpu003" for
/// "gpu[003-007,010],login1". Does not check the syntax.
std::string parse_first_host(std::string_view hosts);

/// The reason why a run of several ranks ends: the error of the first rank that failed, or the loss
/// of a rank.
struct RankFailure {
  int64_t rank = 0;
  ExitCode code = ExitCode::kFailed;
  std::string reason{};

  /// Returns a message: "rank 2: …".
  std::string format_message() const;
};

/// Timeouts and callbacks of DistributedContext.
struct DistributedContextOptions {
  /// Time within which all ranks must connect.
  std::chrono::milliseconds rendezvous_timeout = std::chrono::seconds(60);
  /// Time without a heartbeat after which a rank counts as lost: it was stopped, or its machine or
  /// network failed. A separate thread sends the heartbeats, so a step may take any time.
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(12);
  /// Called on the watchdog thread if a failure is known but this rank does not exit in time: its
  /// own thread has not noticed the failure, or waits for a device that waits for the lost rank.
  /// Must end the process. May be empty.
  std::function<void(const RankFailure& failure)> on_hang{};
};

}  // namespace vlmtrain::distributed
