#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::vgpu {

/// The matrix products of the process, by size. Thread-safe.
class Products {
 public:
  void add(const Product& product);
  void each(void (*visit)(void* context, const Product* product, uint64_t calls), void* context) const;
  void reset();

 private:
  mutable std::mutex mutex_;
  std::map<Product, uint64_t> calls_;
};

Products& products();

}  // namespace vlmtrain::vgpu
