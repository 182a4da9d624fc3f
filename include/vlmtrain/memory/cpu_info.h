#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>

namespace vlmtrain::memory {

/// The processor of this machine, and how much of it is this process's. What is not known is empty.
struct CpuInfo {
  std::string model{};                  ///< AMD EPYC 9R14
  std::set<std::string> flags{};        ///< as /proc/cpuinfo has them: avx2, avx512_bf16, amx_bf16
  int64_t machine_cores = 0;            ///< as the kernel counts them
  int64_t usable_cores = 0;             ///< that this process may run on (taskset, SLURM's --cpus-per-task)
  std::optional<double> quota_cores{};  ///< the time that its control groups give it, in cores (Docker's --cpus)
  /// Processes and threads that its control groups still let start (Docker's --pids-limit).
  std::optional<int64_t> startable_threads{};

  bool has_bf16() const { return flags.contains("amx_bf16") || flags.contains("avx512_bf16"); }
};

/// Of a machine whose proc/ and sys/ are in `root`; which cores are usable the kernel is asked.
CpuInfo read_cpu_info(const std::filesystem::path& root = "/");

/// The threads that computing takes unless the user says otherwise: one for each usable core, at most as many as the
/// quota gives time for, rounded up, and a fourth of what may still be started, since several parts of the program have
/// threads of their own. At least 1.
int64_t default_threads(const CpuInfo& cpu);
/// Of this process, as it was asked for first.
int64_t default_threads();

/// Lets LibTorch compute on default_threads() where these are less than its usable cores, and neither OMP_NUM_THREADS
/// nor MKL_NUM_THREADS is set. To be called before anything is computed.
void limit_threads_to_quota();

/// How products of 16 bits are done on this processor.
enum class Bf16MatmulSupport { kEmulated, kAvx512, kAmx };

/// As people read it: AMX, AVX512-BF16, emulated.
const char* to_string(Bf16MatmulSupport support);

/// The kernels that LibTorch takes here, with what the environment says of them (ATEN_CPU_CAPABILITY,
/// ONEDNN_MAX_CPU_ISA).
struct CpuKernels {
  std::string aten;            ///< AVX512, AVX2, DEFAULT
  int threads = 0;             ///< that an operation takes
  std::string onednn_version;  ///< empty: it told nothing
  std::string onednn_isa;      ///< in its own words: Intel AVX-512 with Intel DL Boost and bfloat16 support
  std::string bf16_product;    ///< its implementation: brg_matmul:avx512_core_bf16; empty: ATen's own loops
  Bf16MatmulSupport bf16 = Bf16MatmulSupport::kEmulated;
};

/// Lets LibTorch do a product in bf16 while oneDNN tells on standard output what it does. For parse_cpu_kernels(). To
/// be called before anything else uses oneDNN, in a process of its own (base/apart.h).
void print_cpu_kernels();

/// What print_cpu_kernels() wrote.
CpuKernels parse_cpu_kernels(const std::string& output);

/// From now on ATen's operations in the calling thread, and in no other, do without OpenMP's team: a thread that works
/// beside the one that trains does not take all cores.
void use_single_aten_thread();

}  // namespace vlmtrain::memory
