#include "kernels/cuda/kernels.h"

extern "C" [[gnu::visibility("default")]] int vlmtrain_kernels_version() {
  return vlmtrain::kernels::kKernelsVersion;
}

extern "C" [[gnu::visibility("default")]] const vlmtrain::kernels::Launchers* vlmtrain_kernels() {
  using namespace vlmtrain::kernels;
  static constexpr Launchers kLaunchers{
      .gate_forward = gate_forward,
      .gate_backward = gate_backward,
      .activate = activate,
      .rotate = rotate,
      .norm_rotate_forward = norm_rotate_forward,
      .norm_rotate_backward = norm_rotate_backward,
      .norm_forward = norm_forward,
      .norm_backward = norm_backward,
      .cross_entropy = cross_entropy,
      .adamw = adamw,
      .nf4_dequantize = nf4_dequantize,
      .int8_dequantize = int8_dequantize,
      .patches = patches,
      .dropout = dropout,
      .dropout_backward = dropout_backward,
  };
  return &kLaunchers;
}
