#pragma once

#include <cstdint>

namespace vlmtrain::memory {

/// Resident set of this process now, and at most; from the kernel.
int64_t host_bytes();
int64_t host_peak_bytes();

/// What this process may use of the host's memory: the least of the machine's and of the limits of its control group
/// and those around it (versions 1 and 2), which SLURM and containers set. More, and the kernel ends it.
int64_t host_limit_bytes();

}  // namespace vlmtrain::memory
