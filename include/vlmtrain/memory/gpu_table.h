#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace vlmtrain::memory {

/// What a compute capability fixes (CUDA C++ Programming Guide, table "Technical Specifications per Compute
/// Capability").
struct Architecture {
  int number = 0;  ///< compute capability × 10: 90 is sm_90
  int threads_per_multiprocessor = 0;
  int blocks_per_multiprocessor = 0;
  int64_t shared_bytes_per_multiprocessor = 0;
  int64_t shared_bytes_per_block = 0;  ///< the most that a kernel can opt in to
};

/// One card. Rates are NVIDIA's data sheets', dense, per second; 0 where the card has no such unit.
struct Gpu {
  std::string_view name;         ///< short, lower case: h100
  std::string_view device_name;  ///< as the driver calls it
  int architecture = 0;          ///< Architecture::number
  int multiprocessors = 0;
  int64_t l2_cache_bytes = 0;
  int64_t memory_bytes = 0;  ///< as the driver reports it (cudaDeviceProp::totalGlobalMem), less than the name says
  bool memory_measured = false;
  int64_t context_bytes = 0;  ///< what a process of LibTorch takes beside its allocator
  bool context_measured = false;
  double fp32_flops = 0;  ///< multiply and add count as two
  double tf32_flops = 0;
  double bf16_flops = 0;  ///< fp16 too, with fp32 sums
  double fp16_flops = 0;
  double memory_bandwidth = 0;  ///< bytes a second
  /// Bytes a second each way, all links together, of cards that come on boards with NVLink only (SXM); else 0.
  double nvlink_bandwidth = 0;
};

/// Every known card, smallest architecture first.
std::span<const Gpu> gpus();

/// Parts of such cards (MIG): h100-mig-3g.40gb, with the rates that they have a share of.
std::span<const Gpu> mig_slices();

/// A card or a part of one; null if there is no such.
const Gpu* find_gpu(std::string_view name);

/// The same card with another number of multiprocessors, and as much more or less of what goes with them.
Gpu scale_multiprocessors(Gpu gpu, int multiprocessors);

/// A card that LibTorch for CUDA 13 has no code for.
struct UnsupportedGpu {
  std::string_view name;
  std::string_view device_name;
  int architecture = 0;
};

/// Null if there is no such old card.
const UnsupportedGpu* find_unsupported_gpu(std::string_view name);

/// The limits of an architecture; of one that is not in the table those of the next older, or of the oldest.
const Architecture& architecture(int number);

}  // namespace vlmtrain::memory
