#include "kernels/cuda/kernels.h"

extern "C" [[gnu::visibility("default")]] int vlmtrain_kernels_version() {
  return vlmtrain::kernels::kKernelsVersion;
}

extern "C" [[gnu::visibility("default")]] const vlmtrain::kernels::Launchers* vlmtrain_kernels() {
  using namespace vlmtrain::kernels;
  static constexpr Launchers kLaunchers{
      .gated_activation_forward = gated_activation_forward,
      .gated_activation_backward = gated_activation_backward,
      .activate = activate,
      .rope = rope,
      .qk_norm_rope_forward = qk_norm_rope_forward,
      .qk_norm_rope_backward = qk_norm_rope_backward,
      .norm_forward = norm_forward,
      .norm_backward = norm_backward,
      .cross_entropy = cross_entropy,
      .adamw = adamw,
      .nf4_dequantize = nf4_dequantize,
      .int8_dequantize = int8_dequantize,
      .patchify = patchify,
      .dropout = dropout,
      .dropout_backward = dropout_backward,
  };
  return &kLaunchers;
}
