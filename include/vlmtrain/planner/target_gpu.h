#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/memory/gpu_table.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::memory {
struct DeviceProperties;
}

namespace vlmtrain::planner {

/// The GPU that a plan is made for.
struct TargetGpu {
  /// Entry of the GPU table, which outlives the program's objects: architecture, FLOPS, context
  /// size.
  const memory::GpuSpec* gpu = nullptr;
  int64_t memory_bytes = 0;          ///< memory size that the driver reports
  int64_t context_bytes = 0;         ///< size of the CUDA context, which PyTorch's allocator does not count
  bool is_context_measured = false;  ///< context_bytes was measured on a GPU; otherwise it is an estimate
  std::string description;           ///< such as "NVIDIA H100 80GB HBM3 (85.03 GB)"
  int64_t other_process_bytes = 0;   ///< memory that other processes use
  int num_multiprocessors = 0;       ///< 0: as in the table; set for GPUs of this machine
  std::string device_name = {};      ///< name that the driver reports; empty if only the size is known
};

/// Returns the GPU, or the MIG slice (such as h100-mig-3g.40gb), of this name in the GPU table. The
/// names of drivers and stores are accepted too, such as "RTX 4090" or "H100 80GB". Throws
/// UserError (kUsage) if the name is unknown or ambiguous, or LibTorch has no code for the GPU
/// (v100).
TargetGpu find_target_gpu(const std::string& name);

/// Returns a GPU with this nominal size in GiB, which vendors call GB. Architecture and speed are
/// those of a common GPU of about that size. Throws UserError (kUsage) for sizes below 1 and above
/// 1024.
///
/// Assumes that the driver reports 98 % of the nominal size. GPUs without in-band ECC report
/// slightly more (RTX 4090 and A100-40: 98.5 %; A100-80, H100, A6000: 99 %). GPUs with in-band ECC
/// (T4, L4, L40S) report 92 %; for these, use find_target_gpu() instead.
TargetGpu make_target_gpu(double nominal_gib);

/// Returns whether the GPU supports the precision and PyTorch has attention kernels for both.
bool supports_precision(const memory::GpuSpec& gpu, engine::Precision precision);

/// Returns a GPU of this machine, with the table entry of the same name, or else of the most
/// similar GPU. If the memory in use is at most twice the table's context size, all of it is
/// counted as this process's context. Otherwise the part beyond the table's context size is counted
/// as other processes'. Throws UserError (kFailed) if LibTorch has no code for the GPU. REQUIRES:
/// the CUDA context exists, but this process has allocated nothing.
TargetGpu make_target_gpu(const memory::DeviceProperties& device);

/// Memory size of the virtual GPU in dry runs, in bytes: more than any GPU has.
constexpr int64_t kUnlimitedBytes = int64_t{1} << 40;

/// Returns the virtual GPU for dry runs of `target`. It reports the target's size, but has
/// kUnlimitedBytes.
VirtualGpu make_virtual_gpu(const TargetGpu& target);

}  // namespace vlmtrain::planner
