#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vlmtrain::report {

/// The GPU of a run.
struct GpuDescription {
  std::string name{};
  int architecture = 0;  ///< compute capability × 10
  int64_t total_bytes = 0;
  std::string driver{};  ///< of its kernel module; empty if unknown, as on a virtual GPU
};

/// The machine and command of a run, for environment.json. Unknown values are empty.
struct Environment {
  std::string host{};
  std::string kernel{};
  std::string cpu{};
  int64_t cpu_cores = 0;  ///< available to this process
  int64_t memory_bytes = 0;
  std::optional<int64_t> memory_limit_bytes{};  ///< of its cgroup
  std::optional<GpuDescription> gpu{};
  std::string libtorch{};
  std::string vlmtrain{};
  std::string commit{};  ///< of this program's sources, with "-dirty" for uncommitted changes
  std::vector<std::string> command{};
  double start_time = 0;  ///< Unix time in seconds
  std::string slurm_job_id{};
  std::vector<std::string> disabled_kernels{};  ///< custom kernels that ATen replaces

  /// Returns `commit` only, which is cheap.
  static std::string get_program_commit();
  /// Describes this process on `device`.
  static Environment collect(at::Device device);
  /// Returns {"host", "kernel", "cpu", "cpu_cores", "memory_bytes", "memory_limit_bytes", "gpu":
  /// {"name", "architecture", "total_bytes", "driver"} or null, "libtorch", "vlmtrain", "commit",
  /// "command", "start_time", "slurm_job_id", "disabled_kernels"} and a line break.
  std::string to_json() const;
};

}  // namespace vlmtrain::report
