#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>

namespace vlmtrain::memory {

/// The processor of a machine and the share of it that this process may use. Fields that cannot be
/// read are empty.
struct CpuInfo {
  std::string model{};                      ///< "AMD EPYC 9R14"
  std::set<std::string> flags{};            ///< as in /proc/cpuinfo: avx2, avx512_bf16, amx_bf16
  int64_t num_machine_cores = 0;            ///< configured logical cores
  int64_t num_usable_cores = 0;             ///< affinity mask (taskset, SLURM's --cpus-per-task)
  std::optional<double> cpu_quota_cores{};  ///< CPU time limit of the control groups, in cores (Docker's --cpus)
  /// Threads that the control groups still allow to start (Docker's --pids-limit).
  std::optional<int64_t> num_startable_threads{};

  bool has_bf16() const { return flags.contains("amx_bf16") || flags.contains("avx512_bf16"); }
};

/// Reads the files below root/proc and root/sys (tests pass another root). The core counts come
/// from system calls.
CpuInfo read_cpu_info(const std::filesystem::path& root = "/");

/// Returns the default number of compute threads: the minimum of the usable cores, the CPU quota
/// rounded up, and a fourth of the threads that may still start. At least 1.
int64_t compute_default_num_threads(const CpuInfo& cpu);
/// Returns compute_default_num_threads() of this process, computed at the first call.
int64_t compute_default_num_threads();

/// Limits LibTorch to compute_default_num_threads() threads per operation if that is less than the
/// usable cores. Does nothing if OMP_NUM_THREADS or MKL_NUM_THREADS is set. REQUIRES: no tensor
/// operation has run.
void limit_threads_to_quota();

/// Makes the calling thread run ATen operations without OpenMP's thread team, so that a worker
/// thread does not compete with the training thread for all cores. Other threads are not affected.
void use_single_aten_thread();

/// The hardware support for matrix products in bf16.
enum class Bf16MatmulSupport { kEmulated, kAvx512, kAmx };

/// Returns a name for messages: AMX, AVX512-BF16, emulated.
const char* to_string(Bf16MatmulSupport support);

/// The CPU kernels that LibTorch selects in this environment (ATEN_CPU_CAPABILITY,
/// ONEDNN_MAX_CPU_ISA).
struct CpuKernelInfo {
  std::string aten_isa;        ///< AVX512, AVX2, DEFAULT
  int num_threads = 0;         ///< per operation
  std::string onednn_version;  ///< empty if oneDNN printed none
  std::string onednn_isa;      ///< oneDNN's description, such as "Intel AVX-512 with Intel DL Boost"
  /// oneDNN's implementation of a bf16 matrix product, such as "brg_matmul:avx512_core_bf16". Empty
  /// if ATen uses its own loops.
  std::string bf16_matmul_kernel;
  Bf16MatmulSupport bf16_matmul_support = Bf16MatmulSupport::kEmulated;
};

/// Runs a bf16 matrix product with oneDNN's verbose output on stdout, for parse_cpu_kernel_info().
/// REQUIRES: nothing has used oneDNN in this process; run it in a process of its own
/// (run_in_subprocess()).
void print_cpu_kernel_info();

/// Parses the output of print_cpu_kernel_info(). Fields of missing lines stay empty.
CpuKernelInfo parse_cpu_kernel_info(const std::string& output);

}  // namespace vlmtrain::memory
