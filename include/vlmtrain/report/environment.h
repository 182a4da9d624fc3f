#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vlmtrain::report {

struct GpuDescription {
  std::string name{};
  int architecture = 0;  ///< compute capability × 10
  int64_t total_bytes = 0;
  std::string driver{};  ///< its version, as the kernel module tells it; empty: unknown, as on a virtual card
};

/// Where and how a run runs; environment.json. What is not known is empty.
struct Environment {
  std::string host{};
  std::string kernel{};
  std::string cpu{};
  int64_t cpu_cores = 0;  ///< that this process may use
  int64_t memory_bytes = 0;
  std::optional<int64_t> memory_limit_bytes{};  ///< of its cgroup
  std::optional<GpuDescription> gpu{};
  std::string libtorch{};
  std::string vlmtrain{};
  std::string commit{};  ///< that this program was built from, "-dirty" where files differed
  std::vector<std::string> command{};
  double start_time = 0;  ///< Unix seconds
  std::string slurm_job_id{};
  std::vector<std::string> disabled_kernels{};  ///< own kernels whose work is left to ATen's operations

  /// `commit` alone, which costs nothing.
  static std::string get_program_commit();
  /// This process, on `device`.
  static Environment collect(at::Device device);
  /// {"host", "kernel", "cpu", "cpu_cores", "memory_bytes", "memory_limit_bytes", "gpu": {"name", "architecture",
  /// "total_bytes", "driver"} or null, "libtorch", "vlmtrain", "commit", "command", "start_time", "slurm_job_id",
  /// "disabled_kernels"}, with a line break at the end.
  std::string to_json() const;
};

}  // namespace vlmtrain::report
