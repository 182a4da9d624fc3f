#pragma once

#include <dlfcn.h>

#include <cstdint>

namespace vlmtrain::vgpu {

/// Number of calls and bytes of one kind of copy.
struct CopyStatistics {
  uint64_t num_calls = 0;
  uint64_t bytes = 0;
};

/// Activity of a process on the virtual GPU since its start or the last reset.
struct GpuCounters {
  uint64_t num_launches = 0;             ///< kernels that a real GPU of this architecture would run
  uint64_t num_rejected_launches = 0;    ///< kernels that it would reject; each is reported on stderr
  uint64_t num_matmuls = 0;              ///< matrix products of cuBLAS and cuBLASLt; a batched one counts once
  uint64_t matmul_flops = 0;             ///< sum of 2 · m · n · k · batch
  uint64_t misaligned_matmul_flops = 0;  ///< of products with MatmulShape::alignment_bytes below 16

  CopyStatistics host_to_device_pinned;
  CopyStatistics host_to_device_pageable;  ///< these block the host
  CopyStatistics device_to_host_pinned;
  CopyStatistics device_to_host_pageable;
  CopyStatistics device_to_device;
  uint64_t num_memsets = 0;  ///< cudaMemset

  uint64_t num_stream_synchronizations = 0;
  uint64_t num_event_synchronizations = 0;
  uint64_t num_device_synchronizations = 0;
  CopyStatistics side_stream_copies;  ///< host-to-device copies on a stream other than the default; also counted above
  uint64_t num_early_side_stream_copies = 0;  ///< side-stream copies that did not wait for all earlier launches
  uint64_t num_copy_races = 0;                ///< races of copies with begin_use(); each is reported on stderr
  uint64_t num_stream_waits = 0;              ///< streams that wait for an event, which does not block the host
  uint64_t num_blocking_copies = 0;           ///< synchronous copies; also counted above

  uint64_t num_host_allocations = 0;  ///< of pinned memory; each takes about a millisecond with a real driver

  uint64_t num_unmodeled_calls = 0;  ///< calls of unmodeled functions; each name is reported on stderr once

  uint64_t num_allocations = 0;  ///< of device memory: cudaMalloc and cuMemCreate
  uint64_t num_frees = 0;
  uint64_t num_failed_allocations = 0;
  uint64_t capacity_bytes = 0;   ///< current memory of the GPU
  uint64_t used_bytes = 0;       ///< current use, VLMTRAIN_VGPU_USED_BYTES included; not reset
  uint64_t peak_used_bytes = 0;  ///< a reset sets it to used_bytes
};

/// The size of a matrix product in cuBLAS's column-major order: C [m, n] = A [m, k] · B [k, n], and
/// the alignment of its matrices.
struct MatmulShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
  int input_type = 0;   ///< cudaDataType_t of A
  int output_type = 0;  ///< cudaDataType_t of C
  /// Largest power of two, at most 16, that divides the addresses of A, B and C and the bytes between
  /// their columns (their leading dimensions). Vectors have no leading dimension: a product with one
  /// takes as long as reading or writing the largest matrix.
  int alignment_bytes = 16;

  auto operator<=>(const MatmulShape&) const = default;  // NOLINT(modernize-use-nullptr): takes its 0 for a pointer
};

/// Calls that can be made to fail, as they do if memory runs out or the device breaks.
enum class FaultPoint {
  kLaunch,            ///< cudaErrorMemoryAllocation: no memory for the kernel's code
  kCublasCreate,      ///< CUBLAS_STATUS_ALLOC_FAILED, of cuBLAS and cuBLASLt
  kHostAllocation,    ///< cudaErrorMemoryAllocation: no pinned memory
  kDeviceAllocation,  ///< cudaMalloc and cuMemCreate: the GPU is full
  kIllegalAddress,    ///< a launch returns cudaErrorIllegalAddress, and so do all later calls
};

inline constexpr int kNumFaultPoints = 5;

/// The functions that the stub libraries export to the program. The program does not link the
/// libraries; it calls find_virtual_gpu_interface(). All functions are thread-safe. Visitors are
/// called with a lock held and must not call CUDA.
struct VirtualGpuInterface {
  const char* (*gpu_name)();  ///< short name from the GPU table (memory/gpu_table.h); "" without a device
  /// Sets all fields of `counters`.
  void (*read_counters)(GpuCounters* counters);
  /// Resets the counters (see GpuCounters) and the counts that the functions below visit.
  void (*reset)();
  /// Visits the kernels launched since the reset, by mangled name, in unspecified order.
  void (*for_each_kernel)(void (*visit)(void* context, const char* name, uint64_t num_launches), void* context);
  /// Visits the sizes of matrix products since the reset, in ascending order.
  void (*for_each_matmul)(void (*visit)(void* context, const MatmulShape* matmul, uint64_t num_calls), void* context);
  /// Visits the unmodeled functions that were called since the reset, in unspecified order.
  void (*for_each_unmodeled_function)(void (*visit)(void* context, const char* name, uint64_t num_calls),
                                      void* context);
  /// Makes calls `first` to `first + count - 1` of this kind fail. The next call has number 0.
  void (*inject_failures)(FaultPoint fault_point, uint64_t first, uint64_t count);
  /// Returns whether kernels take time (VLMTRAIN_VGPU_LAUNCH_MICROSECONDS), as on a real GPU.
  bool (*has_launch_latency)();
  /// Announces that work on the default stream uses this device memory, which copies from host memory fill,
  /// until end_use(first). Copies that are not ordered with it are races (GpuCounters::num_copy_races).
  void (*begin_use)(const void* first, uint64_t bytes);
  void (*end_use)(const void* first);
};

/// Returns the interface, or null if the process does not run on the virtual GPU.
inline const VirtualGpuInterface* find_virtual_gpu_interface() {
  void* const symbol = dlsym(RTLD_DEFAULT, "vlmtrain_vgpu_interface");
  return symbol == nullptr ? nullptr : reinterpret_cast<const VirtualGpuInterface* (*)()>(symbol)();
}

/// Calls VirtualGpuInterface::begin_use() if the process runs on the virtual GPU.
inline void announce_use(const void* first, uint64_t bytes) {
  static const auto* const virtual_gpu = find_virtual_gpu_interface();
  if (virtual_gpu != nullptr) virtual_gpu->begin_use(first, bytes);
}

/// Calls VirtualGpuInterface::end_use() if the process runs on the virtual GPU.
inline void announce_end_of_use(const void* first) {
  static const auto* const virtual_gpu = find_virtual_gpu_interface();
  if (virtual_gpu != nullptr) virtual_gpu->end_use(first);
}

}  // namespace vlmtrain::vgpu
