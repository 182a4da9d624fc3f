#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>

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

/// An instruction set of oneDNN.
struct OneDnnIsa {
  std::string_view name{};                    ///< as in dnnl::cpu_isa, "AVX512_CORE_BF16"; empty below SSE4.1
  std::string_view bf16_matmul = "emulated";  ///< hardware for matrix products in bf16: AMX, AVX512-BF16, emulated
  bool has_fp16_matmul = false;               ///< whether there is hardware for matrix products in fp16
};

/// Returns the largest instruction set that a processor with these flags has and `max_isa`, the value
/// of ONEDNN_MAX_CPU_ISA, allows; other values allow all. Derived from oneDNN's documentation ("CPU
/// Dispatcher Control"), not queried: LibTorch exports no function of oneDNN.
OneDnnIsa derive_onednn_isa(const std::set<std::string>& cpu_flags, std::string max_isa);

/// The CPU kernels that LibTorch selects in this environment (ATEN_CPU_CAPABILITY,
/// ONEDNN_MAX_CPU_ISA).
struct CpuKernelInfo {
  std::string aten_isa;          ///< AVX512, AVX2, DEFAULT
  int num_threads = 0;           ///< per operation
  OneDnnIsa onednn_isa;          ///< derive_onednn_isa()
  std::string onednn_version{};  ///< "3.10.2"; empty without oneDNN
};

/// Returns the kernels for the processor `cpu` of this machine.
CpuKernelInfo get_cpu_kernel_info(const CpuInfo& cpu);

}  // namespace vlmtrain::memory
