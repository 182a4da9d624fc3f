#include "vlmtrain/engine/async_scalars.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "vlmtrain/memory/pinned.h"

namespace vlmtrain::engine {

AsyncScalars::AsyncScalars(const at::Tensor& scalars) {
  if (!scalars.is_cuda()) {
    host_ = scalars;
    return;
  }
  host_ = memory::empty_pinned(scalars.sizes());
  host_.copy_(scalars, /*non_blocking=*/true);
  copy_done_.emplace(scalars.device().type());
  copy_done_->record(c10::impl::VirtualGuardImpl(scalars.device().type()).getStream(scalars.device()));
}

std::vector<double> AsyncScalars::read() {
  if (copy_done_) copy_done_->synchronize();
  const float* const values = host_.const_data_ptr<float>();
  return {values, values + host_.numel()};
}

}  // namespace vlmtrain::engine
