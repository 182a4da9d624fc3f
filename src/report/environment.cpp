#include "vlmtrain/report/environment.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <torch/headeronly/version.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "report/build_commit.h"
#include "report/json_line.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/report/event.h"

namespace vlmtrain::report {

namespace {

/// Empty where there is no such file; /proc and /sys have no sizes to trust.
std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The first line's value of `key` in /proc's "key : value" tables.
std::string value_of(const std::filesystem::path& path, std::string_view key) {
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

/// The least limit from this process's cgroup up to the root, of cgroup v2 ("max": none) or v1 (a huge number: none).
std::optional<int64_t> cgroup_limit(int64_t memory_bytes) {
  std::optional<int64_t> least;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t second = line.find(':');
    const size_t third = line.find(':', second + 1);
    if (third == std::string::npos) continue;
    const std::string controllers = line.substr(second + 1, third - second - 1);
    const bool unified = controllers.empty();
    if (!unified && controllers.find("memory") == std::string::npos) continue;
    const std::filesystem::path root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    std::filesystem::path group = root / std::filesystem::path(line.substr(third + 1)).relative_path();
    while (true) {
      const std::string text = content_of(group / (unified ? "memory.max" : "memory.limit_in_bytes"));
      const int64_t bytes = std::strtoll(text.c_str(), nullptr, 10);
      if (bytes > 0 && bytes < memory_bytes && (!least || bytes < *least)) least = bytes;
      if (group == root || !group.has_parent_path() || group == group.parent_path()) break;
      group = group.parent_path();
    }
  }
  return least;
}

/// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue …" → "550.54.15".
std::string driver_version() {
  std::istringstream words(value_of("/proc/driver/nvidia/version", "NVRM version"));
  for (std::string word; words >> word;) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return {};
}

GpuDescription gpu_of(at::Device device) {
  const auto card = memory::describe(device);
  return {.name = card.name,
          .architecture = card.architecture,
          .total_bytes = card.total_bytes,
          .driver = driver_version()};
}

std::vector<std::string> command_line() {
  std::istringstream text(content_of("/proc/self/cmdline"));
  std::vector<std::string> words;
  for (std::string word; std::getline(text, word, '\0');) words.push_back(word);
  return words;
}

std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

nlohmann::ordered_json gpu_json(const GpuDescription& gpu) {
  return {
      {"name", gpu.name}, {"architecture", gpu.architecture}, {"total_bytes", gpu.total_bytes}, {"driver", gpu.driver}};
}

}  // namespace

Environment Environment::collect(at::Device device) {
  utsname system{};
  uname(&system);
  const int64_t memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  Environment environment{.host = system.nodename,
                          .kernel = std::string(system.sysname) + " " + system.release,
                          .cpu = value_of("/proc/cpuinfo", "model name"),
                          .cpu_cores = usable_cores(),
                          .memory_bytes = memory_bytes,
                          .memory_limit_bytes = cgroup_limit(memory_bytes),
                          .gpu = {},
                          .libtorch = TORCH_VERSION,
                          .vlmtrain = VLMTRAIN_VERSION,
                          .commit = kBuildCommit,
                          .command = command_line(),
                          .start_time = unix_seconds(),
                          .slurm_job_id = environment_variable("SLURM_JOB_ID")};
  if (!device.is_cpu()) environment.gpu = gpu_of(device);
  return environment;
}

std::string Environment::to_json() const {
  const nlohmann::ordered_json json{{"host", host},
                                    {"kernel", kernel},
                                    {"cpu", cpu},
                                    {"cpu_cores", cpu_cores},
                                    {"memory_bytes", memory_bytes},
                                    {"memory_limit_bytes", or_null(memory_limit_bytes)},
                                    {"gpu", gpu ? gpu_json(*gpu) : nlohmann::ordered_json()},
                                    {"libtorch", libtorch},
                                    {"vlmtrain", vlmtrain},
                                    {"commit", commit},
                                    {"command", command},
                                    {"start_time", start_time},
                                    {"slurm_job_id", slurm_job_id}};
  return io::json_text(json, 2) + "\n";
}

}  // namespace vlmtrain::report
