#pragma once

#include <cstdint>
#include <string>

namespace vlmtrain::memory {

/// Resident set of this process now, and at most; from the kernel.
int64_t host_bytes();
int64_t host_peak_bytes();

/// What the machine has, whoever may use it.
int64_t machine_bytes();

/// What this process may use of the host's memory: the least of the machine's and of the limits of its control group
/// and those around it (versions 1 and 2), which SLURM and containers set. More, and the kernel ends it.
int64_t host_limit_bytes();

/// What this process can have of the host's memory in all as things are now, others' use subtracted.
struct AvailableHostMemory {
  int64_t bytes = 0;           ///< what it holds already included
  std::string limit_source{};  ///< what sets it, as people read it: "free memory of the machine", "ulimit -v"
};

/// The least of what the machine has free (MemAvailable), what each control group on the way up has left (caches of
/// files count as free, since the kernel drops them), and what the limits of address space (RLIMIT_AS) and data
/// (RLIMIT_DATA) leave.
AvailableHostMemory get_available_host_memory();

}  // namespace vlmtrain::memory
