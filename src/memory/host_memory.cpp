#include "vlmtrain/memory/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::memory {

namespace {

/// Returns the number after `key` in lines such as `MemTotal:  1000 kB` or `inactive_file 1000`.
std::optional<int64_t> read_keyed_number(const std::filesystem::path& file, std::string_view key) {
  std::ifstream stream(file);
  std::string word;
  int64_t number = 0;
  while (stream >> word) {
    if (word == key && stream >> number) return number;
    stream.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

std::optional<int64_t> read_meminfo_bytes(const std::filesystem::path& root, std::string_view key) {
  constexpr int64_t kKibibyte = 1024;
  const auto kibibytes = read_keyed_number(root / "proc/meminfo", key);
  return kibibytes ? std::optional{*kibibytes * kKibibyte} : std::nullopt;
}

/// Returns a limit in bytes; `max` and unreadable files mean no limit.
int64_t read_limit_bytes(const std::filesystem::path& file) {
  int64_t bytes = 0;
  std::ifstream stream(file);
  return stream >> bytes ? bytes : kNoHostLimitBytes;
}

int64_t read_number(const std::filesystem::path& file) {
  int64_t number = 0;
  std::ifstream stream(file);
  stream >> number;
  return stream ? number : 0;
}

/// File names and memory.stat keys of a cgroup version.
struct ControlGroupFileNames {
  const char* limit_file;
  const char* usage_file;
  const char* inactive_cache_key;  ///< file cache in memory.stat, descendants included
  const char* active_cache_key;    ///< the same for recently used pages
};

constexpr ControlGroupFileNames kCgroupV1FileNames{"memory.limit_in_bytes", "memory.usage_in_bytes",
                                                   "total_inactive_file", "total_active_file"};
constexpr ControlGroupFileNames kCgroupV2FileNames{"memory.max", "memory.current", "inactive_file", "active_file"};

/// The memory limit of a control group and the part of it that is not used.
struct ControlGroupLimit {
  int64_t limit_bytes;
  int64_t remaining_bytes;
  std::filesystem::path file;
};

std::vector<ControlGroupLimit> read_control_group_limits(const std::filesystem::path& root) {
  std::vector<ControlGroupLimit> limits;
  for (const ControlGroupFolder& group : find_control_groups(root, "memory")) {
    const ControlGroupFileNames& files = group.is_cgroup_v2 ? kCgroupV2FileNames : kCgroupV1FileNames;
    const int64_t limit = read_limit_bytes(group.path / files.limit_file);
    if (limit == kNoHostLimitBytes) continue;
    const int64_t file_cache_bytes =
        read_keyed_number(group.path / "memory.stat", files.inactive_cache_key).value_or(0) +
        read_keyed_number(group.path / "memory.stat", files.active_cache_key).value_or(0);
    const int64_t used_bytes =
        read_number(group.path / files.usage_file) - file_cache_bytes;  // the kernel drops file caches
    limits.push_back({limit, limit - std::clamp<int64_t>(used_bytes, 0, limit), group.path / files.limit_file});
  }
  return limits;
}

/// Memory of this process.
struct ProcessMemory {
  int64_t address_space_bytes = 0;
  int64_t anonymous_bytes = 0;  ///< resident, without file mappings
  int64_t data_bytes = 0;
};

ProcessMemory read_process_memory_usage(const std::filesystem::path& root) {
  // man proc: size resident shared text lib data dt, in pages.
  std::ifstream file(root / "proc/self/statm");
  int64_t size = 0, resident = 0, shared = 0, text = 0, library = 0, data = 0;
  file >> size >> resident >> shared >> text >> library >> data;
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  return {size * page_bytes, std::max<int64_t>(0, resident - shared) * page_bytes, data * page_bytes};
}

int64_t get_soft_limit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return kNoHostLimitBytes;
  const bool is_limited = limit.rlim_cur != RLIM_INFINITY && std::in_range<int64_t>(limit.rlim_cur);
  return is_limited ? static_cast<int64_t>(limit.rlim_cur) : kNoHostLimitBytes;
}

}  // namespace

int64_t get_host_limit_bytes(const std::filesystem::path& root) {
  int64_t limit = read_meminfo_bytes(root, "MemTotal:").value_or(kNoHostLimitBytes);
  for (const auto& group : read_control_group_limits(root)) limit = std::min(limit, group.limit_bytes);
  return limit;
}

int64_t get_host_limit_bytes() {
  return get_host_limit_bytes("/");
}

AvailableHostMemory get_available_host_memory(const std::filesystem::path& root, const ResourceLimits& limits) {
  const ProcessMemory process_memory = read_process_memory_usage(root);
  AvailableHostMemory available_memory{.bytes = kNoHostLimitBytes, .limit_source = "nothing"};
  // `remaining` is memory that is not used yet; the process's own memory is added.
  const auto apply_limit = [&](int64_t remaining, const std::string& source) {
    const int64_t bytes = std::max<int64_t>(0, remaining) + process_memory.anonymous_bytes;
    if (bytes < available_memory.bytes) available_memory = {bytes, source};
  };
  if (const auto free = read_meminfo_bytes(root, "MemAvailable:")) apply_limit(*free, "the machine's available memory");
  for (const auto& group : read_control_group_limits(root)) {
    apply_limit(group.remaining_bytes, "the control group's limit " + group.file.string());
  }
  if (limits.address_space_bytes != kNoHostLimitBytes) {
    apply_limit(limits.address_space_bytes - process_memory.address_space_bytes, "the address space limit, ulimit -v");
  }
  if (limits.data_segment_bytes != kNoHostLimitBytes)
    apply_limit(limits.data_segment_bytes - process_memory.data_bytes, "the data limit, ulimit -d");
  return available_memory;
}

AvailableHostMemory get_available_host_memory() {
  return get_available_host_memory(
      "/", {.address_space_bytes = get_soft_limit(RLIMIT_AS), .data_segment_bytes = get_soft_limit(RLIMIT_DATA)});
}

int64_t get_resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

int64_t get_peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int64_t get_machine_memory_bytes() {
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

namespace {

/// Appends the group at `mount` and the groups on the way down to `path`. In a container, `path`
/// may be the host's path, which is not mounted; `mount` itself is then the container's group.
void add_control_groups(std::vector<ControlGroupFolder>& groups, const std::filesystem::path& mount,
                        const std::filesystem::path& path, bool is_cgroup_v2) {
  auto folder = mount;
  groups.push_back({folder, is_cgroup_v2});
  for (const auto& name : path) {
    folder /= name;
    groups.push_back({folder, is_cgroup_v2});
  }
}

}  // namespace

std::vector<ControlGroupFolder> find_control_groups(const std::filesystem::path& root, std::string_view controller) {
  // /proc/self/cgroup (man cgroups): `0::/path` in version 2, `4:cpu,memory:/path` in version 1.
  std::vector<ControlGroupFolder> groups;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto path = std::filesystem::path(line.substr(second + 1)).relative_path();
    if (line.starts_with("0::")) add_control_groups(groups, root / "sys/fs/cgroup", path, /*is_cgroup_v2=*/true);
    // Not a temporary: that constructor needs a newer libstdc++ than the portable build may.
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::istringstream controller_stream(controllers);
    for (std::string name; std::getline(controller_stream, name, ',');) {
      if (name == controller) add_control_groups(groups, root / "sys/fs/cgroup" / name, path, /*is_cgroup_v2=*/false);
    }
  }
  return groups;
}

}  // namespace vlmtrain::memory
