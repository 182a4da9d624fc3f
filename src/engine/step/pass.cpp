#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <exception>

#include "engine/backward_thread.h"

namespace vlmtrain::engine {

void wait_for_backward_thread(at::Device device) noexcept {
  if (device.is_cpu()) return;
  try {
    // The thread does one task after another. These take no memory and launch nothing.
    const auto options = at::TensorOptions(at::kFloat).device(device);
    const at::Tensor nothing = at::empty({0}, options).requires_grad_();
    (nothing * 2).backward(at::empty({0}, options));
  } catch (const std::exception&) {
    // A device that does nothing any more is found by what comes next.
  }
}

}  // namespace vlmtrain::engine
