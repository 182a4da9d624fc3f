#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::distributed {

/// Maximum number of ranks of a run. A sanity check of environment variables, not a limit of the
/// implementation.
constexpr int64_t kMaxRanks = 4096;

/// This process's rank in a run, and the address at which the ranks meet.
struct Launch {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;  ///< on this machine
  std::string host{};      ///< of rank 0
  int64_t port = 0;        ///< on which rank 0 listens
  std::string launcher{};  ///< "torchrun", "srun"

  bool operator==(const Launch&) const = default;
};

/// Returns an environment variable, or nothing if it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// Parses how a launcher started this process. Returns nothing for a single process.
///
/// torchrun and others set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (PyTorch's
/// names). In an srun step, SLURM's variables apply: rank 0 is on the first node, and the port is
/// MASTER_PORT or derived from the job. SLURM's variables without a step belong to a batch script,
/// which is a single process.
///
/// Throws UserError (kUsage) if several processes have no address to meet at, such as mpirun's, or if
/// the variables contradict each other.
std::optional<Launch> parse_launch(const Environment& environment);

/// Calls parse_launch() for this process's environment.
std::optional<Launch> get_process_launch();

/// Returns the first host of a SLURM node list: "gpu003" for "gpu[003-007,010],login1".
std::string first_host(std::string_view hosts);

}  // namespace vlmtrain::distributed
