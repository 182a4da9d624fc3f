#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/gpu_table.h"
#include "vlmtrain/planner/options.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

/// The GPU that a plan is made for.
struct TargetGpu {
  const memory::Gpu* gpu = nullptr;  ///< entry of the GPU table: architecture, FLOPS, context size
  int64_t memory_bytes = 0;          ///< reported by the driver
  int64_t context_bytes = 0;         ///< of the CUDA context, which PyTorch's allocator does not count
  bool context_measured = false;     ///< otherwise context_bytes is the table's
  std::string description;           ///< "NVIDIA H100 80GB HBM3 (85.03 GB)"
  int64_t other_process_bytes = 0;   ///< held by other processes
  int multiprocessors = 0;           ///< 0: the table's; a MIG slice or an unknown model has its own
  std::string device_name = {};      ///< reported by the driver; empty if only the size is known
};

/// Returns the GPU, or MIG slice (h100-mig-3g.40gb), of this name in the GPU table. Throws UserError
/// (kUsage) that lists the known names, and for a GPU without code in LibTorch (v100).
TargetGpu find_target_gpu(const std::string& name);

/// Returns a common GPU of the nominal size in GiB, although sellers write GB. Throws UserError
/// (kUsage) for sizes below 1 and above 1024.
///
/// The driver is taken to report 98 % of the size, a little less than GPUs without in-band ECC do
/// (RTX 4090 and A100-40: 98.5 %; A100-80, H100, A6000: 99 %). GPUs with in-band ECC report 92 % (T4,
/// L4, L40S) and have to be named instead.
TargetGpu make_target_gpu(double nominal_gigabytes);

/// Returns whether the GPU has units for the precision and PyTorch has attention kernels for it.
bool supports_precision(const memory::Gpu& gpu, engine::Precision precision);

/// Returns a GPU of this machine, with the table entry of its name or of the most similar GPU. Memory
/// in use up to twice the table's context size belongs to this process, the rest to other processes.
TargetGpu make_target_gpu(const memory::DeviceDescription& device);

/// The memory of a GPU that a plan may use: limit = GPU − context − communication − margin.
struct MemoryLimit {
  int64_t gpu_bytes = 0;            ///< that this process may use: its own limit, or what others leave
  int64_t context_bytes = 0;        ///< CUDA context and loaded kernels
  int64_t communication_bytes = 0;  ///< NCCL's buffers; 0 for one rank
  int64_t margin_bytes = 0;         ///< kept free
  double margin_percent = 0;        ///< of gpu_bytes
  int64_t limit_bytes = 0;          ///< of PyTorch's allocator
};

/// Returns the limit of a plan. `limit_gigabytes` (memory.limit_gb, in 10⁹ bytes) limits the process
/// as a whole; memory of other processes lowers the size of the GPU, not that limit. For
/// `world_size` > 1 an estimate for NCCL is subtracted.
MemoryLimit compute_memory_limit(const TargetGpu& target, MemoryMode mode, std::optional<double> limit_gigabytes,
                                 int64_t world_size);

/// Returns the share of the GPU's memory that a mode keeps free, in percent.
double get_margin_percent(MemoryMode mode);

/// The memory of the virtual GPU of dry runs: more than any GPU has.
constexpr int64_t kUnlimitedBytes = int64_t{1} << 40;

/// Returns the virtual GPU of dry runs for `target`: it reports the target's size and has no limit.
VirtualGpu make_virtual_gpu(const TargetGpu& target);

}  // namespace vlmtrain::planner
