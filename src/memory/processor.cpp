#include "vlmtrain/memory/processor.h"

#include <sched.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "memory/control_groups.h"

namespace vlmtrain::memory {

namespace {

/// The first line's value of `key` in a table of lines "key : value".
std::string read_first_value(const std::filesystem::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(key)) continue;
    const size_t first = line.find_first_not_of(" \t", colon + 1);
    return first == std::string::npos ? "" : line.substr(first);
  }
  return {};
}

int64_t usable_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : sysconf(_SC_NPROCESSORS_ONLN);
}

/// Of one group: its share of a period; nothing where it has no limit.
std::optional<double> read_cpu_quota(const ControlGroupFolder& group) {
  double quota = 0;
  double period = 0;
  if (group.is_v2) {
    std::ifstream file(group.path / "cpu.max");  // "max 100000", "150000 100000"
    if (!(file >> quota >> period)) return std::nullopt;
  } else {
    std::ifstream quota_file(group.path / "cpu.cfs_quota_us");
    std::ifstream period_file(group.path / "cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period)) return std::nullopt;
  }
  return quota > 0 && period > 0 ? std::optional{quota / period} : std::nullopt;
}

std::optional<double> find_min_quota(const std::filesystem::path& root) {
  std::optional<double> min_quota;
  for (const auto& group : control_groups(root, "cpu")) {
    const auto quota = read_cpu_quota(group);
    if (quota) min_quota = std::min(min_quota.value_or(*quota), *quota);
  }
  return min_quota;
}

/// Of one group; nothing where it has no limit. Threads count as processes.
std::optional<int64_t> read_startable_threads(const ControlGroupFolder& group) {
  int64_t max_threads = 0;
  int64_t current = 0;
  std::ifstream max_file(group.path / "pids.max");  // "max", "100"; the same file in both versions
  std::ifstream current_file(group.path / "pids.current");
  if (!(max_file >> max_threads) || !(current_file >> current)) return std::nullopt;
  return std::max<int64_t>(0, max_threads - current);
}

std::optional<int64_t> find_min_startable(const std::filesystem::path& root) {
  std::optional<int64_t> min_startable;
  for (const auto& group : control_groups(root, "pids")) {
    const auto startable = read_startable_threads(group);
    if (startable) min_startable = std::min(min_startable.value_or(*startable), *startable);
  }
  return min_startable;
}

}  // namespace

CpuInfo read_cpu_info(const std::filesystem::path& root) {
  CpuInfo cpu{.model = read_first_value(root / "proc/cpuinfo", "model name"),
              .machine_cores = sysconf(_SC_NPROCESSORS_CONF),
              .usable_cores = usable_cores(),
              .quota_cores = find_min_quota(root),
              .startable_threads = find_min_startable(root)};
  std::istringstream flags(read_first_value(root / "proc/cpuinfo", "flags"));
  for (std::string flag; flags >> flag;) cpu.flags.insert(flag);
  return cpu;
}

int64_t default_threads(const CpuInfo& cpu) {
  constexpr int64_t kNumThreadPools = 4;
  int64_t threads = cpu.usable_cores;
  if (cpu.quota_cores) threads = std::min(threads, static_cast<int64_t>(std::ceil(*cpu.quota_cores)));
  if (cpu.startable_threads) threads = std::min(threads, *cpu.startable_threads / kNumThreadPools);
  return std::max<int64_t>(1, threads);
}

int64_t default_threads() {
  static const int64_t threads = default_threads(read_cpu_info());
  return threads;
}

void limit_threads_to_quota() {
  for (const char* variable : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return;
  }
  if (default_threads() < usable_cores()) at::set_num_threads(static_cast<int>(default_threads()));
}

}  // namespace vlmtrain::memory
