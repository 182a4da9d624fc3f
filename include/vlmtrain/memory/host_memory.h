#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::memory {

/// Returns the resident set size of this process (/proc/self/statm); 0 if it cannot be read.
int64_t get_resident_bytes();

/// Returns the peak resident set size of this process (getrusage).
int64_t get_peak_resident_bytes();

/// Returns the physical memory of the machine.
int64_t get_machine_memory_bytes();

/// Value of a limit, in bytes, that is not set or cannot be read.
inline constexpr int64_t kNoHostLimitBytes = std::numeric_limits<int64_t>::max();

/// Returns the minimum of the machine's memory and the memory limits of the process's control
/// groups (versions 1 and 2), which SLURM and containers set. The kernel kills a process that
/// exceeds the limit. Files that cannot be read set no limit. The overload with `root` reads
/// root/proc and root/sys, for tests.
int64_t get_host_limit_bytes();
int64_t get_host_limit_bytes(const std::filesystem::path& root);

/// Host memory that this process can use now.
struct AvailableHostMemory {
  int64_t bytes = 0;           ///< includes the anonymous memory that the process already holds
  std::string limit_source{};  ///< the limit that `bytes` comes from, for messages
};

/// Resource limits of a process in bytes, as `ulimit -v` and `ulimit -d` set them.
struct ResourceLimits {
  int64_t address_space_bytes = kNoHostLimitBytes;
  int64_t data_segment_bytes = kNoHostLimitBytes;
};

/// Returns the minimum of the machine's free memory (MemAvailable), the unused part of each control
/// group's limit, and the unused part of RLIMIT_AS and RLIMIT_DATA. File caches count as free,
/// because the kernel drops them. Files that cannot be read set no limit. The overload with `root`
/// is for tests.
AvailableHostMemory get_available_host_memory();
AvailableHostMemory get_available_host_memory(const std::filesystem::path& root, const ResourceLimits& limits);

/// A directory in which the kernel exposes a control group.
struct ControlGroupFolder {
  std::filesystem::path path;
  bool is_cgroup_v2 = true;  ///< the files of version 2 have other names than those of version 1
};

/// Returns the control groups that limit this process's use of `controller` ("memory", "cpu",
/// "pids"), outermost first. Reads root/proc/self/cgroup; returns no groups if that fails. Some of
/// the folders may not exist.
std::vector<ControlGroupFolder> find_control_groups(const std::filesystem::path& root, std::string_view controller);

}  // namespace vlmtrain::memory
