#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

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

inline constexpr int64_t kNoHostLimit = std::numeric_limits<int64_t>::max();

/// Of a process, as `ulimit -v` and `ulimit -d` set them, in bytes.
struct AddressLimits {
  int64_t address_space = kNoHostLimit;
  int64_t data = kNoHostLimit;
};

/// host_limit_bytes() and get_available_host_memory() of a machine whose proc/ and sys/ are in `root`.
int64_t host_limit_bytes(const std::filesystem::path& root);
AvailableHostMemory get_available_host_memory(const std::filesystem::path& root, const AddressLimits& limits);

/// A folder in which the kernel shows a control group.
struct ControlGroupFolder {
  std::filesystem::path path;
  bool is_v2 = true;  ///< version 2, whose files are called otherwise than version 1's
};

/// The groups that bound this process's use of what `controller` (memory, cpu) counts, from the outermost that is seen
/// here to its own, on a machine whose proc/ and sys/ are in `root`.
std::vector<ControlGroupFolder> control_groups(const std::filesystem::path& root, std::string_view controller);

}  // namespace vlmtrain::memory
