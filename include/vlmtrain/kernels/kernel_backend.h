#pragma once

#include <cstdint>

namespace vlmtrain::kernels {

/// training.kernels: what computes where vlmtrain has kernels of its own.
enum class KernelBackend : uint8_t {
  kCustom,  ///< they do, those that a card computes as ATen does
  kAten,    ///< ATen's operations
};

}  // namespace vlmtrain::kernels
