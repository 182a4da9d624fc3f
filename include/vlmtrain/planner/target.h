#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/memory/gpu_table.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/planner/options.h"
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

/// The host memory that a CPU run needs in addition to its tensors, and the counts it depends on.
struct HostMemoryRequirements {
  int64_t process_bytes = 0;         ///< the program and the records of the data set
  int64_t largest_sample_bytes = 0;  ///< size of the largest decoded sample
  int64_t decode_bytes = 0;          ///< additional memory of a loader thread while it decodes a sample
  int64_t samples_per_step = 1;      ///< samples of this rank per optimizer step
  int64_t world_size = 1;
  int64_t num_loader_threads = 1;
};

/// The host whose memory a CPU run uses.
struct TargetHost {
  memory::AvailableHostMemory available_memory;
  HostMemoryRequirements requirements = {};
  int64_t max_micro_batch_size = 1;  ///< the largest size to try unless the constraints set one
};

/// The device that a plan is made for.
using PlanTarget = std::variant<TargetGpu, TargetHost>;

/// The memory that a plan may use: limit = allowed memory − margin − overhead.
struct MemoryLimit {
  /// Memory that this process may use: memory.limit_gb, or the memory of the GPU or host that other
  /// processes do not use, whichever is lower.
  int64_t allowed_bytes = 0;
  std::string limit_source = {};  ///< on a host: the limit that allowed_bytes comes from; empty on a GPU
  int64_t margin_bytes = 0;       ///< memory that is kept free
  double margin_percent = 0;      ///< the same as a share of allowed_bytes
  // The overhead: memory that dry runs do not measure.
  int64_t context_bytes = 0;          ///< GPU: size of the CUDA context with loaded kernels
  int64_t communication_bytes = 0;    ///< GPU: NCCL's buffers; 0 for one rank
  int64_t process_bytes = 0;          ///< host: HostMemoryRequirements::process_bytes
  int64_t decoded_samples_bytes = 0;  ///< host: decoded samples in the loader's queue, in the step and being decoded
  int64_t library_bytes = 0;          ///< host: buffers of oneDNN and MKL, stacks, the autograd graph
  int64_t prefetch_bytes = 0;         ///< host: limit of the decoded samples in the loader's queue
  /// Limit of what dry runs measure, at least 0. GPU: the reserved memory of PyTorch's allocator.
  /// Host: tensors of the training thread and malloc's free blocks.
  int64_t limit_bytes = 0;

  int64_t overhead_bytes() const {
    return context_bytes + communication_bytes + process_bytes + decoded_samples_bytes + library_bytes;
  }
};

/// Returns the limit of a plan. `limit_gigabytes` is memory.limit_gb in 10⁹ bytes, the limit of the
/// whole process. Memory of other processes is subtracted from the GPU's memory, not from that
/// limit. On a GPU, an estimate of NCCL's buffers is subtracted for `world_size` > 1.
MemoryLimit compute_memory_limit(const PlanTarget& target, MemoryMode mode, std::optional<double> limit_gigabytes,
                                 int64_t world_size);

/// Returns the share of the memory, of a GPU or host, that a mode keeps free, in percent.
double get_margin_percent(MemoryMode mode);

/// Returns the limit, in bytes, of decoded samples in the loader's queue: a quarter of
/// limit_bytes − used_bytes, at least 1.
int64_t compute_prefetch_bytes(int64_t limit_bytes, int64_t used_bytes);

}  // namespace vlmtrain::planner
