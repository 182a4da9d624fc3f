#include "engine/step/pass.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <exception>

namespace vlmtrain::engine {

void wait_for_backward_thread(at::Device device) noexcept {
  if (device.is_cpu()) return;
  try {
    // The thread runs tasks in order. This one allocates nothing and launches nothing.
    const auto options = at::TensorOptions(at::kFloat).device(device);
    const at::Tensor nothing = at::empty({0}, options).requires_grad_();
    (nothing * 2).backward(at::empty({0}, options));
  } catch (const std::exception&) {
    // A failed device is detected by the next operation.
  }
}

}  // namespace vlmtrain::engine
