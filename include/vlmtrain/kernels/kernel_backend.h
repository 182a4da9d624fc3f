#pragma once

#include <cstdint>

namespace vlmtrain::kernels {

/// The implementation of operations for which vlmtrain has custom kernels. The configuration key is
/// training.kernels.
enum class KernelBackend : uint8_t {
  kCustom,  ///< custom kernels, except those that fail their self-test on this GPU
  kAten,    ///< ATen's operations
};

}  // namespace vlmtrain::kernels
