#include "vlmtrain/engine/async_scalars.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace vlmtrain::engine {

AsyncScalars::AsyncScalars(const at::Tensor& scalars) {
  if (scalars.is_cpu()) {
    host_ = scalars;
    return;
  }
  host_ = at::empty(scalars.sizes(), at::TensorOptions(at::kFloat).pinned_memory(true));
  host_.copy_(scalars, /*non_blocking=*/true);
  copied_.emplace(scalars.device().type());
  copied_->record(c10::impl::VirtualGuardImpl(scalars.device().type()).getStream(scalars.device()));
}

std::vector<double> AsyncScalars::read() {
  if (copied_) copied_->synchronize();
  const float* const values = host_.const_data_ptr<float>();
  return {values, values + host_.numel()};
}

}  // namespace vlmtrain::engine
