#include "vgpu/core/products.h"

#include <string>

#include "vgpu/core/count.h"
#include "vgpu/core/immortal.h"
#include "vgpu/core/trace.h"

namespace vlmtrain::vgpu {

void MatmulCounter::add(const Matmul& product) {
  ++global_counters().matmuls;
  global_counters().matmul_flops += static_cast<uint64_t>(2 * product.m * product.n * product.k * product.batch);
  if (trace().is_enabled()) {
    trace().add({"product", std::to_string(product.m), std::to_string(product.n), std::to_string(product.k),
                 std::to_string(product.batch), std::to_string(product.input_type),
                 std::to_string(product.output_type)});
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_[product];
}

void MatmulCounter::for_each(void (*visit)(void* context, const Matmul* product, uint64_t calls), void* context) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [product, calls] : calls_) visit(context, &product, calls);
}

void MatmulCounter::reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_.clear();
}

MatmulCounter& matmul_counter() {
  return leaky_singleton<MatmulCounter>();
}

}  // namespace vlmtrain::vgpu
