#include "vgpu/core/products.h"

#include <string>

#include "vgpu/core/count.h"
#include "vgpu/core/immortal.h"
#include "vgpu/core/trace.h"

namespace vlmtrain::vgpu {

void Products::add(const Product& product) {
  ++counts().products;
  counts().product_operations += static_cast<uint64_t>(2 * product.m * product.n * product.k * product.batch);
  if (trace().is_on()) {
    trace().add({"product", std::to_string(product.m), std::to_string(product.n), std::to_string(product.k),
                 std::to_string(product.batch), std::to_string(product.input_type),
                 std::to_string(product.output_type)});
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_[product];
}

void Products::each(void (*visit)(void* context, const Product* product, uint64_t calls), void* context) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [product, calls] : calls_) visit(context, &product, calls);
}

void Products::reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_.clear();
}

Products& products() {
  return immortal<Products>();
}

}  // namespace vlmtrain::vgpu
