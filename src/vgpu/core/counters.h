#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::vgpu {

/// Thread-safe counterpart of CopyCount.
struct AtomicCopyCount {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> bytes{0};

  void add(uint64_t copied_bytes) {
    ++calls;
    bytes += copied_bytes;
  }
};

/// The part of Counters that any thread may increment. DeviceMemory has the rest.
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

/// Calls of matrix products in this process, by size. Thread-safe.
class MatmulCounter {
 public:
  void add(const Matmul& product);
  void for_each(void (*visit)(void* context, const Matmul* product, uint64_t calls), void* context) const;
  void reset();

 private:
  mutable std::mutex mutex_;
  std::map<Matmul, uint64_t> calls_;
};

/// Returns the counter of this process.
MatmulCounter& matmul_counter();

}  // namespace vlmtrain::vgpu
