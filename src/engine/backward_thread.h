#pragma once

#include <c10/core/Device.h>

namespace vlmtrain::engine {

/// Waits until autograd's thread of the device holds nothing any more of a backward pass that failed: it hands the
/// error over first, and drops the tensors a moment later, so that what is freed next would differ from time to time.
/// On the CPU there is no such thread.
void wait_for_backward_thread(at::Device device) noexcept;

}  // namespace vlmtrain::engine
