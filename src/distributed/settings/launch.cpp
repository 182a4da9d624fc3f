#include "vlmtrain/distributed/launch.h"

#include <cstdlib>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::distributed {

namespace {

constexpr int64_t kMaxPort = 65535;

/// Returns nothing if the variable is not set or is not a number. The latter is allowed, because
/// other programs may use the same name.
std::optional<int64_t> read_integer_variable(const EnvironmentLookup& environment, const char* name) {
  const auto text = environment(name);
  return text ? parse_int_after_prefix("", *text) : std::nullopt;
}

int64_t read_port(const EnvironmentLookup& environment) {
  const auto port = read_integer_variable(environment, "MASTER_PORT");
  if (!port || *port < 1 || *port > kMaxPort) {
    throw usage_error("MASTER_PORT={}: must be a number from 1 to {}, the port of rank 0",
                      make_excerpt(environment("MASTER_PORT").value_or("")), kMaxPort);
  }
  return *port;
}

void validate_rank(const LaunchInfo& launch, const char* rank_variable, const char* world_size_variable,
                   const char* local_rank_variable) {
  if (launch.rank < 0 || launch.rank >= launch.world_size) {
    throw usage_error("{}={} and {}={}: the rank must be from 0 to {}", rank_variable, launch.rank, world_size_variable,
                      launch.world_size, launch.world_size - 1);
  }
  if (launch.local_rank < 0) {
    throw usage_error("{}={}: must be 0 or more; start the ranks with torchrun, srun or vlmtrain --nproc-per-node",
                      local_rank_variable, launch.local_rank);
  }
}

void check_world_size(int64_t world_size, const char* variable) {
  if (world_size >= 1 && world_size <= kMaxWorldSize) return;
  throw usage_error("{}={}: must be a number of ranks from 1 to {}", variable, world_size, kMaxWorldSize);
}

std::optional<LaunchInfo> parse_torchrun_launch(const EnvironmentLookup& environment) {
  const auto world_size = read_integer_variable(environment, "WORLD_SIZE");
  const auto rank = read_integer_variable(environment, "RANK");
  if (!world_size) {
    if (rank && *rank > 0)
      throw usage_error("RANK={}, but WORLD_SIZE is not set; set it to the number of ranks", *rank);
    return std::nullopt;
  }
  check_world_size(*world_size, "WORLD_SIZE");
  if (*world_size == 1) return std::nullopt;
  if (!rank && environment("RANK")) {
    throw usage_error("RANK={}: must be a number from 0 to {}", make_excerpt(environment("RANK").value_or("")),
                      *world_size - 1);
  }
  if (!rank) throw usage_error("WORLD_SIZE={}, but RANK is not set; set it to the rank of this process", *world_size);
  const auto host = environment("MASTER_ADDR");
  if (!host || host->empty()) {
    throw usage_error(
        "WORLD_SIZE={}, but MASTER_ADDR is not set, so the ranks cannot connect; start them with torchrun, srun or "
        "vlmtrain --nproc-per-node {}",
        *world_size, *world_size);
  }
  if (!environment("MASTER_PORT")) {
    throw usage_error(
        "WORLD_SIZE={}, but MASTER_PORT is not set; set it to a free port of rank 0's node, or start the ranks with "
        "torchrun, srun or vlmtrain --nproc-per-node {}",
        *world_size, *world_size);
  }
  LaunchInfo launch{.rank = *rank,
                    .world_size = *world_size,
                    .local_rank = read_integer_variable(environment, "LOCAL_RANK").value_or(*rank),
                    .master_address = *host,
                    .master_port = read_port(environment),
                    .launcher = environment("VLMTRAIN_LAUNCHER").value_or("torchrun")};
  validate_rank(launch, "RANK", "WORLD_SIZE", "LOCAL_RANK");
  return launch;
}

/// Returns a port that is equal for all tasks of a step and differs between most steps. The range
/// is above the usual ports of servers and below Linux's ephemeral ports, which begin at 32768.
int64_t derive_port(int64_t job, int64_t step) {
  // Consecutive jobs are 31 ports apart, so that their first 31 steps have different ports.
  constexpr int64_t kFirstPort = 20'000, kNumPorts = 10'000, kPortsPerJob = 31;
  return kFirstPort + (job * kPortsPerJob + step) % kNumPorts;
}

std::optional<LaunchInfo> parse_srun_launch(const EnvironmentLookup& environment) {
  const auto num_tasks = read_integer_variable(environment, "SLURM_STEP_NUM_TASKS");
  if (!environment("SLURM_STEP_ID") || !num_tasks || *num_tasks <= 1) return std::nullopt;
  check_world_size(*num_tasks, "SLURM_STEP_NUM_TASKS");
  const auto rank = read_integer_variable(environment, "SLURM_PROCID");
  const auto node_list = environment("SLURM_STEP_NODELIST");
  if (!rank || !node_list || node_list->empty()) {
    throw usage_error("SLURM_STEP_NUM_TASKS={}, but {} is not set; start the tasks with srun", *num_tasks,
                      rank ? "SLURM_STEP_NODELIST" : "SLURM_PROCID");
  }
  LaunchInfo launch{.rank = *rank,
                    .world_size = *num_tasks,
                    .local_rank = read_integer_variable(environment, "SLURM_LOCALID").value_or(0),
                    .master_address = environment("MASTER_ADDR").value_or(parse_first_host(*node_list)),
                    .master_port = environment("MASTER_PORT")
                                       ? read_port(environment)
                                       : derive_port(read_integer_variable(environment, "SLURM_JOB_ID").value_or(0),
                                                     read_integer_variable(environment, "SLURM_STEP_ID").value_or(0)),
                    .launcher = "srun"};
  validate_rank(launch, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID");
  return launch;
}

void reject_unsupported_launchers(const EnvironmentLookup& environment) {
  // Open MPI sets the first, MPICH and Intel MPI the second.
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const auto count = read_integer_variable(environment, variable);
    if (!count || *count <= 1) continue;
    throw usage_error(
        "{}={}: mpirun is not supported; start the processes with torchrun, srun or vlmtrain --nproc-per-node {}",
        variable, *count, *count);
  }
}

}  // namespace

std::optional<LaunchInfo> parse_launch_info(const EnvironmentLookup& environment) {
  if (auto launch = parse_torchrun_launch(environment)) return launch;
  if (auto launch = parse_srun_launch(environment)) return launch;
  reject_unsupported_launchers(environment);
  return std::nullopt;
}

std::optional<LaunchInfo> read_launch_info() {
  return parse_launch_info([](const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

std::string parse_first_host(std::string_view hosts) {
  const size_t bracket_or_comma = hosts.find_first_of("[,");
  if (bracket_or_comma == std::string_view::npos || hosts[bracket_or_comma] == ',')
    return std::string(hosts.substr(0, bracket_or_comma));
  const std::string_view after_bracket = hosts.substr(bracket_or_comma + 1);
  const std::string first_number(after_bracket.substr(0, after_bracket.find_first_of("-,]")));
  const size_t closing_bracket = after_bracket.find(']');
  if (closing_bracket == std::string_view::npos) return std::string(hosts.substr(0, bracket_or_comma)) + first_number;
  // A host name can have several brackets: "rack[1-2]node[3-4]".
  return std::string(hosts.substr(0, bracket_or_comma)) + first_number +
         parse_first_host(after_bracket.substr(closing_bracket + 1));
}

}  // namespace vlmtrain::distributed
