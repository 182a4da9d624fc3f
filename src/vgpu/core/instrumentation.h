#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::vgpu {

/// Writes the concatenated pieces as one line to stderr. The stub libraries cannot throw through C
/// functions and cannot use the program's log.
void print_stderr_line(std::initializer_list<std::string_view> pieces);

/// A log of the GPU's operations in order, one per line, appended to the file that
/// VLMTRAIN_VGPU_TRACE names (docs/explanation/virtual-gpu.md). Each line is written at once, so the trace of a
/// killed process is complete. Thread-safe.
class OperationTrace {
 public:
  OperationTrace();

  bool is_enabled() const { return file_ >= 0; }

  /// Appends the pieces, separated by spaces, as one line if the trace is enabled.
  void add(std::initializer_list<std::string_view> pieces);

 private:
  std::mutex mutex_;
  int file_ = -1;
  std::string line_;
};

/// Returns the trace of this process.
OperationTrace& operation_trace();

/// An unmodeled function of a CUDA library. cmake/virtual_gpu_stubs.py generates a weak definition
/// for every function of the real library. A definition in src/vgpu takes precedence over it.
struct UnmodeledFunction {
  const char* name;
  std::atomic<uint64_t> num_calls{0};
  bool is_reported = false;
  UnmodeledFunction* next = nullptr;
};

/// Counts the call and reports it on stderr the first time. Thread-safe.
void record_unmodeled_call(UnmodeledFunction& call);

/// Visits the unmodeled functions that were called since the last reset. Thread-safe.
void for_each_unmodeled_function(void (*visit)(void* context, const char* name, uint64_t num_calls), void* context);
/// Sets the counts of all unmodeled functions to 0. They are not reported again. Thread-safe.
void reset_unmodeled_call_counts();

/// Thread-safe counterpart of CopyStatistics.
struct AtomicCopyStatistics {
  std::atomic<uint64_t> num_calls{0};
  std::atomic<uint64_t> bytes{0};

  void add(uint64_t copied_bytes) {
    ++num_calls;
    bytes += copied_bytes;
  }
};

/// The counters that any thread may increment, with the meaning of the same members of GpuCounters.
/// DeviceMemory has the other members.
struct AtomicGpuCounters {
  std::atomic<uint64_t> num_launches{0};
  std::atomic<uint64_t> num_rejected_launches{0};
  std::atomic<uint64_t> num_matmuls{0};
  std::atomic<uint64_t> matmul_flops{0};
  std::atomic<uint64_t> misaligned_matmul_flops{0};
  AtomicCopyStatistics host_to_device_pinned;
  AtomicCopyStatistics host_to_device_pageable;
  AtomicCopyStatistics device_to_host_pinned;
  AtomicCopyStatistics device_to_host_pageable;
  AtomicCopyStatistics device_to_device;
  std::atomic<uint64_t> num_memsets{0};
  std::atomic<uint64_t> num_stream_synchronizations{0};
  std::atomic<uint64_t> num_event_synchronizations{0};
  std::atomic<uint64_t> num_device_synchronizations{0};
  AtomicCopyStatistics side_stream_copies;
  std::atomic<uint64_t> num_early_side_stream_copies{0};
  std::atomic<uint64_t> num_copy_races{0};
  std::atomic<uint64_t> num_stream_waits{0};
  std::atomic<uint64_t> num_blocking_copies{0};
  std::atomic<uint64_t> num_host_allocations{0};
  std::atomic<uint64_t> num_unmodeled_calls{0};

  /// Copies the values into `counters`, whose other members stay.
  void read(GpuCounters& counters) const;
  void reset();
};

/// Returns the counters of this process.
AtomicGpuCounters& global_counters();

/// A matrix operand of a product in column-major order.
struct MatrixOperand {
  const void* data;
  int64_t rows, columns;
  int64_t leading_dimension;  ///< elements between columns
  int type;                   ///< cudaDataType_t: real, of 8 to 64 bits
};

/// Returns MatmulShape::alignment_bytes of a product with these matrices.
int compute_alignment_bytes(std::initializer_list<MatrixOperand> operands);

/// The number of matrix products in this process, by size. Thread-safe.
class MatmulCounter {
 public:
  /// Counts a product here and in global_counters(), and adds it to the trace.
  void add(const MatmulShape& product);
  /// Visits the sizes in ascending order.
  void for_each_matmul(void (*visit)(void* context, const MatmulShape* product, uint64_t num_calls),
                       void* context) const;
  void reset();

 private:
  mutable std::mutex mutex_;
  std::map<MatmulShape, uint64_t> num_calls_by_shape_;
};

/// Returns the counter of this process.
MatmulCounter& matmul_counter();

/// A schedule of failing calls, from VLMTRAIN_VGPU_FAIL or VirtualGpuInterface::inject_failures.
/// Thread-safe.
class FaultInjector {
 public:
  FaultInjector();

  /// Makes calls `first` to `first + count - 1` of this kind fail. The next call has number 0.
  void schedule_faults(FaultPoint fault_point, uint64_t first, uint64_t count);

  /// Counts a call and returns whether it is to fail. `kernel` is the kernel's mangled name if the
  /// call is a launch, else empty.
  bool consume_scheduled_fault(FaultPoint fault_point, std::string_view kernel = {});

 private:
  /// The calls of one kind that fail, and the number of calls so far.
  struct FaultWindow {
    std::atomic<uint64_t> num_calls{0};
    std::atomic<uint64_t> first{0};
    std::atomic<uint64_t> count{0};
    /// Part of a kernel's mangled name. Until the first failure, launches of other kernels are not
    /// counted; afterwards, all launches are.
    std::string kernel = {};
  };

  void load_environment_faults();

  std::array<FaultWindow, kNumFaultPoints> fault_windows_;
};

/// Returns the schedule of this process.
FaultInjector& fault_injector();

}  // namespace vlmtrain::vgpu

/// Defines an unmodeled function. It returns `status`, its library's code for "not supported".
#define VLMTRAIN_VGPU_UNKNOWN_CALL(function, status)                            \
  extern "C" __attribute__((weak)) long function() {                            \
    static constinit vlmtrain::vgpu::UnmodeledFunction call{.name = #function}; \
    vlmtrain::vgpu::record_unmodeled_call(call);                                \
    return status;                                                              \
  }
