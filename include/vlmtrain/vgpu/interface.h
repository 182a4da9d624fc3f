#pragma once

#include <dlfcn.h>

#include <cstdint>

namespace vlmtrain::vgpu {

/// Copies of one direction and kind of host memory.
struct CopyCount {
  uint64_t calls = 0;
  uint64_t bytes = 0;
};

/// What a process did on the virtual GPU since the start or the last reset.
struct Counters {
  uint64_t launches = 0;           ///< kernels that a real card of this architecture would have started
  uint64_t rejected_launches = 0;  ///< kernels that it would have refused; each is reported on stderr
  uint64_t matmuls = 0;            ///< matrix products of cuBLAS and cuBLASLt; a batched one counts once
  uint64_t matmul_flops = 0;       ///< their 2 · m · n · k · batch

  CopyCount host_to_device_pinned;
  CopyCount host_to_device_pageable;  ///< these hold up the host
  CopyCount device_to_host_pinned;
  CopyCount device_to_host_pageable;
  CopyCount device_to_device;
  uint64_t fills = 0;  ///< cudaMemset

  uint64_t stream_synchronizations = 0;
  uint64_t event_synchronizations = 0;
  uint64_t device_synchronizations = 0;
  /// Copies to the device on another stream than the one that computes; counted among the copies as well.
  CopyCount side_stream_copies;
  uint64_t early_side_stream_copies = 0;  ///< that did not wait for all that had been launched before them
  uint64_t stream_waits = 0;              ///< of a stream for an event; these hold up no host
  uint64_t blocking_copies = 0;  ///< copies that return only when they are done; counted among the copies as well

  uint64_t host_allocations = 0;  ///< of pinned memory, each of which takes a real driver a millisecond or so

  uint64_t unknown_calls = 0;  ///< calls of functions that are not modelled; each name is reported on stderr once

  uint64_t allocations = 0;  ///< of device memory: cudaMalloc and cuMemCreate
  uint64_t frees = 0;
  uint64_t failed_allocations = 0;
  uint64_t capacity_bytes = 0;   ///< of the card, now
  uint64_t used_bytes = 0;       ///< now, VLMTRAIN_VGPU_USED_BYTES included; a reset leaves it
  uint64_t used_peak_bytes = 0;  ///< a reset sets it to used_bytes
};

/// A matrix product, column-major as cuBLAS has it: C [m, n] = A [m, k] · B [k, n], `batch` times.
struct Matmul {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
  int input_type = 0;   ///< cudaDataType_t of A
  int output_type = 0;  ///< cudaDataType_t of C

  auto operator<=>(const Matmul&) const = default;  // NOLINT(modernize-use-nullptr): takes its 0 for a pointer
};

/// Calls that can be made to fail: as they do where memory runs out beside PyTorch's allocator, or in it, or where the
/// device breaks.
enum class FaultPoint {
  kLaunch,            ///< cudaErrorMemoryAllocation: no room for the kernel's code
  kCublasCreate,      ///< CUBLAS_STATUS_ALLOC_FAILED, of cuBLAS and cuBLASLt
  kHostAllocation,    ///< cudaErrorMemoryAllocation: no pinned memory
  kDeviceAllocation,  ///< cudaMalloc and cuMemCreate: the card is full
  kIllegalAddress,    ///< cudaErrorIllegalAddress, which every call returns from then on
};

inline constexpr int kNumFaultPoints = 5;

/// What the stand-ins offer the program above them. Nothing links against them: find_interface() finds them in the
/// process. The visitors are called while a lock is held: they must not call CUDA.
struct Interface {
  const char* (*gpu_name)();  ///< short name from the table of GPUs
  void (*read_counters)(Counters* counters);
  void (*reset)();
  /// Kernels that were launched since the reset, by mangled name, in no particular order.
  void (*for_each_kernel)(void (*visit)(void* context, const char* name, uint64_t launches), void* context);
  void (*for_each_matmul)(void (*visit)(void* context, const Matmul* matmul, uint64_t calls), void* context);
  void (*for_each_unknown_call)(void (*visit)(void* context, const char* name, uint64_t calls), void* context);
  /// Of the calls of a kind from now on, `count` fail, number `first` (from 0) and those behind it.
  void (*inject_failures)(FaultPoint call, uint64_t first, uint64_t count);
  /// Whether kernels take time (VLMTRAIN_VGPU_LAUNCH_MICROSECONDS), as on a real card.
  bool (*has_launch_latency)();
};

/// Null where the process is not on the virtual GPU.
inline const Interface* find_interface() {
  void* const symbol = dlsym(RTLD_DEFAULT, "vlmtrain_vgpu_interface");
  return symbol == nullptr ? nullptr : reinterpret_cast<const Interface* (*)()>(symbol)();
}

}  // namespace vlmtrain::vgpu
