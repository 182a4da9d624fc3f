#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace vlmtrain::memory {

/// Limits that a compute capability implies (CUDA C++ Programming Guide, table "Technical
/// Specifications per Compute Capability").
struct ArchitectureLimits {
  int compute_capability = 0;  ///< × 10: 90 is sm_90
  int max_threads_per_multiprocessor = 0;
  int max_blocks_per_multiprocessor = 0;
  int64_t shared_bytes_per_multiprocessor = 0;
  int64_t max_shared_bytes_per_block = 0;  ///< maximum that a kernel can opt in to
};

/// Data of one GPU model. Rates are the dense rates of NVIDIA's data sheets, per second; 0 if the
/// GPU lacks the unit.
struct GpuSpec {
  std::string_view name;         ///< short, lower case: "h100"
  std::string_view device_name;  ///< as the driver reports it
  int architecture = 0;          ///< compute capability × 10
  int num_multiprocessors = 0;
  int64_t l2_cache_bytes = 0;
  int64_t memory_bytes = 0;  ///< cudaDeviceProp::totalGlobalMem, less than the marketing size
  bool is_memory_measured = false;
  int64_t context_bytes = 0;  ///< memory of a LibTorch process outside its allocator
  bool is_context_measured = false;
  double fp32_flops = 0;  ///< a multiply-add counts as two
  double tf32_flops = 0;
  double bf16_flops = 0;        ///< with fp32 accumulation
  double fp16_flops = 0;        ///< with fp32 accumulation
  double memory_bandwidth = 0;  ///< bytes per second
  /// Bytes per second in each direction over all links, for boards with NVLink (SXM); else 0.
  double nvlink_bandwidth = 0;
};

/// Returns all known GPUs, sorted by architecture, then by memory. Entries are never destroyed.
std::span<const GpuSpec> list_gpu_specs();

/// Returns the MIG slices of known GPUs, such as "h100-mig-3g.40gb". A slice has its share of the
/// GPU's rates.
std::span<const GpuSpec> list_mig_slices();

/// Returns the GPU or MIG slice whose GpuSpec::name is `name`, or null. The pointer is always
/// valid.
const GpuSpec* find_gpu_spec(std::string_view name);

/// Returns `gpu` with another number of multiprocessors (> 0) and proportional rates. Bandwidth and
/// cache shrink in proportion too, but do not grow.
GpuSpec scale_multiprocessors(GpuSpec gpu, int num_multiprocessors);

/// A GPU model for which LibTorch for CUDA 13 has no code.
struct UnsupportedGpu {
  std::string_view name;
  std::string_view device_name;
  int architecture = 0;
};

/// Returns the unsupported GPU whose UnsupportedGpu::name is `name`, or null.
const UnsupportedGpu* find_unsupported_gpu(std::string_view name);

/// Returns the limits of an architecture. `compute_capability` is the compute capability × 10. An
/// architecture that is not in the table gets the limits of the next older one; one older than the
/// table gets the oldest's.
const ArchitectureLimits& get_architecture_limits(int compute_capability);

}  // namespace vlmtrain::memory
