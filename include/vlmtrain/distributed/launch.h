#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::distributed {

/// In a run.
constexpr int64_t kMaxRanks = 4096;

/// This process among those of a run, and where they meet.
struct Launch {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;  ///< on this machine
  std::string host{};      ///< of rank 0
  int64_t port = 0;        ///< at which rank 0 waits for the others
  std::string launcher{};  ///< what says so: "torchrun", "srun"

  bool operator==(const Launch&) const = default;
};

/// A variable of the environment; nothing where it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// How a launcher has started this process: torchrun and others by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
/// MASTER_PORT (PyTorch's names), srun by the variables of its step, whose first node rank 0 is on; MASTER_PORT counts
/// there too, else the port follows from the job. SLURM's variables outside of a step are those of a batch script,
/// which is one process. Nothing for a process by itself. Throws UserError (kUsage) where they are several that have
/// nowhere to meet, such as mpirun's, or where the variables contradict each other.
std::optional<Launch> parse_launch(const Environment& environment);
/// Of this process's own environment.
std::optional<Launch> get_process_launch();

/// The first name of a list as SLURM writes them: "gpu[003-007,010],login1" has "gpu003".
std::string first_host(std::string_view hosts);

}  // namespace vlmtrain::distributed
