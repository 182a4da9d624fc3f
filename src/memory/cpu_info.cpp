#include "vlmtrain/memory/cpu_info.h"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
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

// Prefixes of the lines that print_cpu_kernel_info() adds to oneDNN's output.
constexpr std::string_view kAtenPrefix = "aten,";
constexpr std::string_view kThreadsPrefix = "threads,";

/// Returns the text after `marker` in the line, or an empty string if the line lacks the marker.
std::string get_text_after_marker(const std::string& line, std::string_view marker) {
  const size_t position = line.find(marker);
  return position == std::string::npos ? std::string() : line.substr(position + marker.size());
}

std::string get_first_field(const std::string& text) {
  return text.substr(0, text.find(','));
}

Bf16MatmulSupport parse_bf16_support(const std::string& implementation) {
  if (implementation.find("amx") != std::string::npos) return Bf16MatmulSupport::kAmx;
  // avx512_core_bf16 and later instruction sets that include it.
  const bool has_bf16 = implementation.find("avx512_core_bf16") != std::string::npos ||
                        implementation.find("avx512_core_fp16") != std::string::npos ||
                        implementation.find("avx10") != std::string::npos;
  return has_bf16 ? Bf16MatmulSupport::kAvx512 : Bf16MatmulSupport::kEmulated;
}

}  // namespace

const char* to_string(Bf16MatmulSupport support) {
  switch (support) {
    case Bf16MatmulSupport::kAmx:
      return "AMX";
    case Bf16MatmulSupport::kAvx512:
      return "AVX512-BF16";
    case Bf16MatmulSupport::kEmulated:
      break;
  }
  return "emulated";
}

void print_cpu_kernel_info() {
  setenv("ONEDNN_VERBOSE", "1", /*overwrite=*/1);
  std::printf("%s%s\n%s%d\n", std::string(kAtenPrefix).c_str(), at::get_cpu_capability().c_str(),
              std::string(kThreadsPrefix).c_str(), at::get_num_threads());
  constexpr int64_t kMatrixSize = 256;  // large enough that LibTorch uses oneDNN
  // oneDNN prints its version at its first operation. This one uses oneDNN on every processor.
  static_cast<void>(at::ones({kMatrixSize, kMatrixSize}).to_mkldnn());
  const at::Tensor matrix = at::ones({kMatrixSize, kMatrixSize}, at::kBFloat16);
  static_cast<void>(at::linear(matrix, matrix));
}

CpuKernelInfo parse_cpu_kernel_info(const std::string& output) {
  CpuKernelInfo kernels;
  std::istringstream output_stream(output);
  const auto set_if_empty = [](std::string& target, std::string value) {
    if (target.empty()) target = std::move(value);
  };
  for (std::string line; std::getline(output_stream, line);) {
    if (line.starts_with(kAtenPrefix)) kernels.aten_isa = line.substr(kAtenPrefix.size());
    if (line.starts_with(kThreadsPrefix)) kernels.num_threads = std::atoi(line.c_str() + kThreadsPrefix.size());
    const std::string onednn_version = get_text_after_marker(line, ",info,oneDNN v");
    set_if_empty(kernels.onednn_version, onednn_version.substr(0, onednn_version.find(' ')));
    set_if_empty(kernels.onednn_isa, get_text_after_marker(line, ",info,cpu,isa:"));
    set_if_empty(kernels.bf16_matmul_kernel, get_first_field(get_text_after_marker(line, ",exec,cpu,matmul,")));
  }
  kernels.bf16_matmul_support = parse_bf16_support(kernels.bf16_matmul_kernel);
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
