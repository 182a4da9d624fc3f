#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::vgpu {

/// The matrix products of the process, by size. Thread-safe.
class MatmulCounter {
 public:
  void add(const Matmul& product);
  void for_each(void (*visit)(void* context, const Matmul* product, uint64_t calls), void* context) const;
  void reset();

 private:
  mutable std::mutex mutex_;
  std::map<Matmul, uint64_t> calls_;
};

MatmulCounter& matmul_counter();

}  // namespace vlmtrain::vgpu
