#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::report {

/// The GPU of a run.
struct GpuDescription {
  std::string name{};
  int architecture = 0;  ///< compute capability × 10, such as 90 for 9.0
  int64_t total_bytes = 0;
  std::string driver{};  ///< version of the kernel module; empty if unknown, as on a virtual GPU
};

/// The machine and command of a run, for environment.json. Unknown values are empty.
struct Environment {
  std::string host{};                           ///< host name
  std::string os_kernel{};                      ///< name and release: "Linux 6.8.0"
  std::string cpu_model{};                      ///< model name
  int64_t num_cpu_cores = 0;                    ///< available to this process
  int64_t memory_bytes = 0;                     ///< of the machine
  std::optional<int64_t> memory_limit_bytes{};  ///< of the cgroup; nullopt without a limit below `memory_bytes`
  std::optional<GpuDescription> gpu{};          ///< nullopt on the CPU
  std::string libtorch_version{};               ///< of the headers that the program was compiled with
  std::string vlmtrain_version{};               ///< of this program
  std::string commit{};                         ///< of the program's sources, with "-dirty" for uncommitted changes
  std::vector<std::string> command{};           ///< arguments of the process, the program first
  double start_time = 0;                        ///< Unix time in seconds
  std::string slurm_job_id{};                   ///< SLURM_JOB_ID; empty outside of SLURM jobs
  std::vector<std::string> disabled_kernels{};  ///< custom kernels that are switched off; ATen operations replace them

  /// Returns the value of `commit` without collecting the other values.
  static std::string get_program_commit();
  /// Collects the values for this process on `device`.
  static Environment collect(at::Device device);
  /// Returns {"host", "kernel", "cpu", "cpu_cores", "memory_bytes", "memory_limit_bytes", "gpu":
  /// {"name", "architecture", "total_bytes", "driver"} or null, "libtorch", "vlmtrain", "commit",
  /// "command", "start_time", "slurm_job_id", "disabled_kernels"} and a line break.
  std::string to_json() const;
};

}  // namespace vlmtrain::report
