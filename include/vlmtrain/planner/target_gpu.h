#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "vlmtrain/engine/options.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/gpu_table.h"
#include "vlmtrain/planner/options.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

/// The card that a plan is for.
struct TargetGpu {
  const memory::Gpu* gpu = nullptr;  ///< architecture, rates, context
  int64_t memory_bytes = 0;          ///< as the driver reports it
  int64_t context_bytes = 0;         ///< what this process takes beside PyTorch's allocator: the CUDA context
  bool context_measured = false;
  std::string description;          ///< "NVIDIA H100 80GB HBM3 (85.03 GB)" or "a card of 24 GB (…)"
  int64_t other_process_bytes = 0;  ///< what other processes hold now
  int multiprocessors = 0;          ///< 0: the table's; of a part of a card (MIG) or another model, its own
  std::string device_name = {};     ///< as its driver calls it; empty for a card of which only the size is known
};

/// A card of the table, or a part of one (h100-mig-3g.40gb). Throws UserError (kUsage) that names the known ones, and
/// for a card that LibTorch has no code for (v100).
TargetGpu find_target_gpu(const std::string& name);

/// A card of so many nominal gigabytes (as shops count them: 24 means 24 GiB). Its driver reports 98 % of that, a
/// little less than the cards of the table without ECC in their memory's own space do (98.5 % RTX 4090 and A100-40, 99
/// % A100-80, H100, A6000); cards that keep check bits there report 92 % (T4, L4, L40S): name those. Architecture and
/// rates are those of a common card of that size. Throws UserError (kUsage) for sizes below 1 and above 1024.
TargetGpu make_target_gpu(double nominal_gigabytes);

/// Whether a card has units for a precision and PyTorch has attention kernels for it: bf16 needs both.
bool supports_precision(const memory::Gpu& gpu, engine::Precision precision);

/// The card in this machine: architecture and rates of the table's card of that name, or of the one most like it. Of
/// what is taken already, twice the table's context at most is this process's, the rest other processes'.
TargetGpu make_target_gpu(const memory::DeviceDescription& device);

/// What a plan may take of a card: limit = card − context − communication − margin.
struct MemoryLimit {
  int64_t gpu_bytes = 0;      ///< all that this process may take: the least of its own limit and what others leave
  int64_t context_bytes = 0;  ///< the CUDA context and loaded kernels
  int64_t communication_bytes = 0;  ///< NCCL's buffers; 0 on one card
  int64_t margin_bytes = 0;         ///< kept free
  double margin_percent = 0;        ///< of gpu_bytes
  int64_t limit_bytes = 0;          ///< what is left for PyTorch's allocator
};

/// `limit_gigabytes` (memory.limit_gb, of 1e9 bytes) is this process's own limit, of all that it takes: what others
/// hold makes the card smaller, not that limit. `world_size` > 1 adds an estimate for NCCL.
MemoryLimit compute_memory_limit(const TargetGpu& target, MemoryMode mode, std::optional<double> limit_gigabytes,
                                 int64_t world_size);

/// Share of the card that a mode keeps free, in percent.
double get_margin_percent(MemoryMode mode);

/// What stands for `target` in rehearsals: a card without limit that says it has the same size.
VirtualGpu make_virtual_gpu(const TargetGpu& target);

}  // namespace vlmtrain::planner
