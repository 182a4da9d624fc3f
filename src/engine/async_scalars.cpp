#include "vlmtrain/engine/async_scalars.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace vlmtrain::engine {

AsyncScalars::AsyncScalars(const std::vector<at::Tensor>& scalars) {
  const at::Tensor together = at::stack(scalars).to(at::kFloat);
  if (together.is_cpu()) {
    host_ = together;
    return;
  }
  host_ = at::empty(together.sizes(), at::TensorOptions(at::kFloat).pinned_memory(true));
  host_.copy_(together, /*non_blocking=*/true);
  copied_.emplace(together.device().type());
  copied_->record(c10::impl::VirtualGuardImpl(together.device().type()).getStream(together.device()));
}

std::vector<double> AsyncScalars::read() {
  if (copied_) copied_->synchronize();
  const float* const values = host_.const_data_ptr<float>();
  return {values, values + host_.numel()};
}

}  // namespace vlmtrain::engine
