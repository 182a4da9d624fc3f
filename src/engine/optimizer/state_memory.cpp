#include "engine/optimizer/state_memory.h"

#include <ATen/ops/zeros.h>

#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::engine {

StateMemory::StateMemory(const at::TensorOptions& options, bool is_on_host)
    : options_(options), is_on_host_(is_on_host), arena_(options.device()) {}

at::Tensor StateMemory::make_zeros(at::IntArrayRef sizes, at::ScalarType dtype) {
  if (!is_on_host_) return make_resident_zeros(sizes, dtype);
  return arena_.view_on_device(arena_.allocate(sizes, dtype, keys::memory::kOffload.data()));
}

at::Tensor StateMemory::make_resident_zeros(at::IntArrayRef sizes, at::ScalarType dtype) const {
  return at::zeros(sizes, options_.dtype(dtype));
}

}  // namespace vlmtrain::engine
