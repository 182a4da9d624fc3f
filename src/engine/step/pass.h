#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/core/Device.h>

#include <exception>

#include "vlmtrain/memory/out_of_memory.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// Waits until autograd's thread of the device has freed the tensors of a failed backward pass. The
/// thread reports the error before it frees them, so without this wait, the allocator's state would
/// vary from run to run. Does nothing on the CPU, whose backward passes run on the calling thread.
inline void wait_for_backward_thread(at::Device device) noexcept {
  if (device.is_cpu()) return;
  try {
    // The thread runs tasks in order. The task of an empty tensor allocates and launches nothing.
    const auto options = at::TensorOptions(at::kFloat).device(device);
    const at::Tensor empty_tensor = at::empty({0}, options).requires_grad_();
    (empty_tensor * 2).backward(at::empty({0}, options));
  } catch (const std::exception&) {
    // If the device failed, the next operation reports it.
  }
}

/// Calls `pass` between begin_pass() and end_pass() of the store (nn::BlockUnsharder). After an
/// out-of-memory error, ends the pass, so that other ranks can continue theirs, and rethrows the
/// error. Other errors, which end the process, are rethrown at once.
template <class Pass>
void run_pass(const nn::ParameterStore& store, const nn::ForwardPassSpec& spec, const Pass& pass) {
  store.begin_pass(spec);
  try {
    pass();
  } catch (const std::exception& error) {
    if (!memory::detect_out_of_memory(error)) throw;
    wait_for_backward_thread(store.options().device());
    store.end_pass();
    throw;
  }
  store.end_pass();
}

}  // namespace vlmtrain::engine
