#pragma once

#include <cstdint>

// The table of the custom kernels: KERNEL(enumerator, name, former name or ""), followed by
// LAUNCHER(function, arguments) for each entry point of the kernel in the library. Names,
// enumerators, entry points and self-tests follow from it:
// - `name` is the kernel's name in VLMTRAIN_WITHOUT_KERNELS and in reports.
// - test_<name>() (src/kernels/self_test.h) compares the kernel with ATen's operations.
// - launchers.h has the arguments; src/kernels/cuda implements the functions.
#define VLMTRAIN_KERNEL_TABLE(KERNEL, LAUNCHER)                    \
  KERNEL(kGatedActivation, gated_activation, "gate")               \
  LAUNCHER(gated_activation_forward, GatedActivationForwardArgs)   \
  LAUNCHER(gated_activation_backward, GatedActivationBackwardArgs) \
  KERNEL(kActivation, activation, "")                              \
  LAUNCHER(activate, ActivationArgs)                               \
  KERNEL(kRope, rope, "rotate")                                    \
  LAUNCHER(rope, RopeArgs)                                         \
  KERNEL(kQkNormRope, qk_norm_rope, "norm_rotate")                 \
  LAUNCHER(qk_norm_rope_forward, QkNormRopeForwardArgs)            \
  LAUNCHER(qk_norm_rope_backward, QkNormRopeBackwardArgs)          \
  KERNEL(kNorm, norm, "")                                          \
  LAUNCHER(norm_forward, NormForwardArgs)                          \
  LAUNCHER(norm_backward, NormBackwardArgs)                        \
  KERNEL(kCrossEntropy, cross_entropy, "")                         \
  LAUNCHER(cross_entropy, CrossEntropyArgs)                        \
  KERNEL(kAdamW, adamw, "")                                        \
  LAUNCHER(adamw, AdamWArgs)                                       \
  KERNEL(kNf4, nf4, "")                                            \
  LAUNCHER(nf4_dequantize, Nf4DequantizeArgs)                      \
  KERNEL(kInt8, int8, "")                                          \
  LAUNCHER(int8_dequantize, Int8DequantizeArgs)                    \
  KERNEL(kPatchify, patchify, "patches")                           \
  LAUNCHER(patchify, PatchifyArgs)                                 \
  KERNEL(kDropout, dropout, "")                                    \
  LAUNCHER(dropout, DropoutArgs)                                   \
  LAUNCHER(dropout_backward, DropoutBackwardArgs)
/// For uses that need only the kernels or only the launchers.
#define VLMTRAIN_SKIP(...)

namespace vlmtrain::kernels {

/// A custom CUDA kernel that replaces several passes of ATen by one. All are optional: callers
/// check is_available() and otherwise use ATen's operations.
enum class Kernel : uint8_t {
#define VLMTRAIN_ENUMERATOR(enumerator, name, former_name) enumerator,
  VLMTRAIN_KERNEL_TABLE(VLMTRAIN_ENUMERATOR, VLMTRAIN_SKIP)
#undef VLMTRAIN_ENUMERATOR
};

/// The implementation of operations for which vlmtrain has custom kernels. The configuration key is
/// training.kernels.
enum class KernelBackend : uint8_t {
  kCustom,  ///< custom kernels, except those that fail their self-test on this GPU
  kAten,    ///< ATen's operations
};

}  // namespace vlmtrain::kernels
