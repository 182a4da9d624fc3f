#include "vlmtrain/memory/cpu_info.h"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "vlmtrain/memory/host_memory.h"

namespace vlmtrain::memory {

namespace {

/// Returns the first value of `key` in a file of "key : value" lines.
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

int64_t count_usable_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : sysconf(_SC_NPROCESSORS_ONLN);
}

/// Returns the group's CPU time per period, or nothing if it has no limit.
std::optional<double> read_cpu_quota(const ControlGroupFolder& group) {
  double quota = 0;
  double period = 0;
  if (group.is_cgroup_v2) {
    std::ifstream file(group.path / "cpu.max");  // "max 100000" or "150000 100000"
    if (!(file >> quota >> period)) return std::nullopt;
  } else {
    std::ifstream quota_file(group.path / "cpu.cfs_quota_us");
    std::ifstream period_file(group.path / "cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period)) return std::nullopt;
  }
  return quota > 0 && period > 0 ? std::optional{quota / period} : std::nullopt;
}

std::optional<double> find_min_cpu_quota(const std::filesystem::path& root) {
  std::optional<double> min_quota;
  for (const auto& group : find_control_groups(root, "cpu")) {
    const auto quota = read_cpu_quota(group);
    if (quota) min_quota = std::min(min_quota.value_or(*quota), *quota);
  }
  return min_quota;
}

/// Returns how many more threads the group allows, or nothing if it has no limit. The kernel counts
/// threads as processes.
std::optional<int64_t> read_num_startable_threads(const ControlGroupFolder& group) {
  int64_t max_threads = 0;
  int64_t num_current_threads = 0;
  std::ifstream max_threads_file(group.path / "pids.max");  // "max" or "100"; the same file in both versions
  std::ifstream current_threads_file(group.path / "pids.current");
  if (!(max_threads_file >> max_threads) || !(current_threads_file >> num_current_threads)) return std::nullopt;
  return std::max<int64_t>(0, max_threads - num_current_threads);
}

std::optional<int64_t> find_num_startable_threads(const std::filesystem::path& root) {
  std::optional<int64_t> min_startable_threads;
  for (const auto& group : find_control_groups(root, "pids")) {
    const auto startable_threads = read_num_startable_threads(group);
    if (startable_threads)
      min_startable_threads = std::min(min_startable_threads.value_or(*startable_threads), *startable_threads);
  }
  return min_startable_threads;
}

}  // namespace

CpuInfo read_cpu_info(const std::filesystem::path& root) {
  CpuInfo cpu{.model = read_first_value(root / "proc/cpuinfo", "model name"),
              .num_machine_cores = sysconf(_SC_NPROCESSORS_CONF),
              .num_usable_cores = count_usable_cores(),
              .cpu_quota_cores = find_min_cpu_quota(root),
              .num_startable_threads = find_num_startable_threads(root)};
  std::istringstream flag_stream(read_first_value(root / "proc/cpuinfo", "flags"));
  for (std::string flag; flag_stream >> flag;) cpu.flags.insert(flag);
  return cpu;
}

int64_t compute_default_num_threads(const CpuInfo& cpu) {
  // An upper bound on the thread pools of this size that the program starts (OpenMP, autograd, data
  // loader, checkpoints).
  constexpr int64_t kNumThreadPools = 4;
  int64_t threads = cpu.num_usable_cores;
  if (cpu.cpu_quota_cores) threads = std::min(threads, static_cast<int64_t>(std::ceil(*cpu.cpu_quota_cores)));
  if (cpu.num_startable_threads) threads = std::min(threads, *cpu.num_startable_threads / kNumThreadPools);
  return std::max<int64_t>(1, threads);
}

int64_t compute_default_num_threads() {
  static const int64_t threads = compute_default_num_threads(read_cpu_info());
  return threads;
}

void limit_threads_to_quota() {
  for (const char* variable : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return;
  }
  if (compute_default_num_threads() < count_usable_cores())
    at::set_num_threads(static_cast<int>(compute_default_num_threads()));
}

namespace {

/// An instruction set of oneDNN, and the flag of /proc/cpuinfo of the processors that have it in
/// addition to those before it.
struct OneDnnIsaLevel {
  OneDnnIsa isa;
  const char* cpu_flag;
};

/// dnnl::cpu_isa, in ascending order. The sets of AVX10 have the bits of these.
constexpr OneDnnIsaLevel kOneDnnIsaLevels[] = {{{"SSE41"}, "sse4_1"},
                                               {{"AVX"}, "avx"},
                                               {{"AVX2"}, "avx2"},
                                               {{"AVX512_CORE"}, "avx512bw"},
                                               {{"AVX512_CORE_VNNI"}, "avx512_vnni"},
                                               {{"AVX512_CORE_BF16", "AVX512-BF16"}, "avx512_bf16"},
                                               {{"AVX512_CORE_FP16", "AVX512-BF16", true}, "avx512_fp16"},
                                               {{"AVX512_CORE_AMX", "AMX", true}, "amx_bf16"},
                                               {{"AVX512_CORE_AMX_FP16", "AMX", true}, "amx_fp16"}};

}  // namespace

OneDnnIsa derive_onednn_isa(const std::set<std::string>& cpu_flags, std::string max_isa) {
  std::ranges::transform(max_isa, max_isa.begin(), [](unsigned char letter) { return std::toupper(letter); });
  if (max_isa.starts_with("AVX2_")) max_isa = "AVX2";
  if (max_isa.starts_with("AVX10_")) {
    max_isa = max_isa.find("AMX") == std::string::npos ? "AVX512_CORE_FP16" : "AVX512_CORE_AMX_FP16";
  }
  OneDnnIsa isa;
  for (const auto& level : kOneDnnIsaLevels) {
    if (!cpu_flags.contains(level.cpu_flag)) break;
    isa = level.isa;
    if (max_isa == isa.name) break;
  }
  return isa;
}

CpuKernelInfo get_cpu_kernel_info(const CpuInfo& cpu) {
  const char* max_isa = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (max_isa == nullptr) max_isa = std::getenv("DNNL_MAX_CPU_ISA");
  CpuKernelInfo kernels{.aten_isa = at::get_cpu_capability(),
                        .num_threads = at::get_num_threads(),
                        .onednn_isa = derive_onednn_isa(cpu.flags, max_isa == nullptr ? "" : max_isa)};
  const std::string version = at::get_mkldnn_version();  // "Intel(R) MKL-DNN v3.10.2 (Git Hash …)"
  if (const size_t marker = version.find(" v"); marker != std::string::npos)
    kernels.onednn_version = version.substr(marker + 2, version.find(' ', marker + 2) - marker - 2);
  return kernels;
}

// An ATen operation above its grain size starts an OpenMP team in the calling thread. N worker
// threads would have N teams, each with one thread per core. at::set_num_threads(1) would also
// affect threads that start later, such as those of the autograd engine. So the limit is set for
// this thread only, in LibTorch's OpenMP runtime.
void use_single_aten_thread() {
  at::get_num_threads();  // LibTorch initializes a thread at its first use, which would reset the limit
  using SetNumThreadsFunction = void (*)(int);
  const auto set_num_threads = reinterpret_cast<SetNumThreadsFunction>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set_num_threads != nullptr) set_num_threads(1);
}

}  // namespace vlmtrain::memory
