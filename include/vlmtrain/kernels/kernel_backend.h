#pragma once

#include <cstdint>

namespace vlmtrain::kernels {

/// The implementation of operations for which vlmtrain has custom kernels (option training.kernels).
enum class KernelBackend : uint8_t {
  kCustom,  ///< custom kernels, except those whose results differ from ATen's on this GPU
  kAten,    ///< ATen's operations
};

}  // namespace vlmtrain::kernels
