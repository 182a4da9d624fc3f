#pragma once

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
/// VLMTRAIN_VGPU_TRACE names (docs/virtual-gpu.md). Each line is written at once, so the trace of a
/// killed process is complete. Thread-safe.
class Trace {
 public:
  Trace();

  bool is_enabled() const { return file_ >= 0; }

  /// Appends the pieces, separated by spaces, as one line if the trace is enabled.
  void add(std::initializer_list<std::string_view> pieces);

 private:
  std::mutex mutex_;
  int file_ = -1;
  std::string line_;
};

/// Returns the trace of this process.
Trace& trace();

/// An unmodeled function of a CUDA library. cmake/virtual_gpu_stubs.py generates a weak definition
/// for every function of the real library. A definition in src/vgpu takes precedence over it.
struct UnknownCall {
  const char* name;
  std::atomic<uint64_t> calls{0};
  bool is_reported = false;
  UnknownCall* next = nullptr;
};

/// Counts the call and reports it on stderr the first time. Thread-safe.
void record_unknown_call(UnknownCall& call);

/// Visits the unmodeled functions that were called since the last reset. Thread-safe.
void for_each_unknown_call(void (*visit)(void* context, const char* name, uint64_t calls), void* context);
/// Sets the counts of all unmodeled functions to 0. They are not reported again. Thread-safe.
void reset_unknown_calls();

/// Thread-safe counterpart of CopyCount.
struct AtomicCopyCount {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> bytes{0};

  void add(uint64_t copied_bytes) {
    ++calls;
    bytes += copied_bytes;
  }
};

/// The counters that any thread may increment, with the meaning of the same members of Counters.
/// DeviceMemory has the other members.
struct AtomicCounters {
  std::atomic<uint64_t> launches{0};
  std::atomic<uint64_t> rejected_launches{0};
  std::atomic<uint64_t> matmuls{0};
  std::atomic<uint64_t> matmul_flops{0};
  AtomicCopyCount host_to_device_pinned;
  AtomicCopyCount host_to_device_pageable;
  AtomicCopyCount device_to_host_pinned;
  AtomicCopyCount device_to_host_pageable;
  AtomicCopyCount device_to_device;
  std::atomic<uint64_t> fills{0};
  std::atomic<uint64_t> stream_synchronizations{0};
  std::atomic<uint64_t> event_synchronizations{0};
  std::atomic<uint64_t> device_synchronizations{0};
  AtomicCopyCount side_stream_copies;
  std::atomic<uint64_t> early_side_stream_copies{0};
  std::atomic<uint64_t> stream_waits{0};
  std::atomic<uint64_t> blocking_copies{0};
  std::atomic<uint64_t> host_allocations{0};
  std::atomic<uint64_t> unknown_calls{0};

  /// Copies the values into `counters`, whose other members stay.
  void read(Counters& counters) const;
  void reset();
};

/// Returns the counters of this process.
AtomicCounters& global_counters();

/// The number of matrix products in this process, by size. Thread-safe.
class MatmulCounter {
 public:
  /// Counts a product here and in global_counters(), and adds it to the trace.
  void add(const Matmul& product);
  /// Visits the sizes in ascending order.
  void for_each_matmul(void (*visit)(void* context, const Matmul* product, uint64_t calls), void* context) const;
  void reset();

 private:
  mutable std::mutex mutex_;
  std::map<Matmul, uint64_t> calls_;
};

/// Returns the counter of this process.
MatmulCounter& matmul_counter();

}  // namespace vlmtrain::vgpu

/// Defines an unmodeled function. It returns `status`, its library's code for "not supported".
#define VLMTRAIN_VGPU_UNKNOWN_CALL(function, status)                      \
  extern "C" __attribute__((weak)) long function() {                      \
    static constinit vlmtrain::vgpu::UnknownCall call{.name = #function}; \
    vlmtrain::vgpu::record_unknown_call(call);                            \
    return status;                                                        \
  }
