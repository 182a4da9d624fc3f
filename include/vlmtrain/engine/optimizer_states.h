#pragma once

namespace vlmtrain::engine {

/// What AdamW's moments are held in. Tensors with fewer than 4,096 elements are always held in fp32, as bitsandbytes
/// has it.
enum class OptimizerStates {
  kFp32,
  /// Rounded stochastically: a second moment that decays by 0.1 % a step would never move where it is rounded to the
  /// nearest of bf16's values, which are 0.4 to 0.8 % apart.
  kBf16,
  /// Block-wise with a dynamic code (Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization, arXiv
  /// 2110.02861), as bitsandbytes' AdamW8bit and transformers' adamw_bnb_8bit: 256 elements share a scale; embeddings
  /// stay in fp32.
  k8Bit,
};

}  // namespace vlmtrain::engine
