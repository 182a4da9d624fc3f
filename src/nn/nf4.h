#pragma once

#include "vlmtrain/nn/quantization.h"

namespace vlmtrain::nn {

/// What the NF4 weights of a model share.
struct Nf4Tables {
  /// [65536]: the four fp32 values of two bytes, the one in the low bits first, as they lie in memory. As numbers of
  /// 128 bits, since ATen's kernels for indices of one dimension move an entry at once, and those for rows a row a
  /// block.
  at::Tensor pairs;
  at::Tensor dynamic_map;  ///< fp32 [256]: the values of a block's quantised absmax
};

Nf4Tables make_nf4_tables(at::Device device);

/// Quantization::kNf4. The tensors are long enough for whole blocks of blocks, so that no rest has to be treated apart;
/// state() are the parts of them that hold something.
class Nf4Weight : public QuantizedWeight {
 public:
  Nf4Weight(at::IntArrayRef sizes, const at::TensorOptions& options, Nf4Tables tables);

  void quantize(const at::Tensor& weight) override;
  at::Tensor dequantize() const override;
  std::vector<std::pair<std::string, at::Tensor>> state() const override;
  std::vector<at::Tensor> tensors() const override;

 private:
  /// fp32, one for a block.
  at::Tensor dequantized_absmax() const;

  at::ScalarType dtype_;
  Nf4Tables tables_;
  int64_t elements_;
  int64_t blocks_;
  at::Tensor packed_;         // uint8
  at::Tensor absmax_;         // uint8
  at::Tensor nested_absmax_;  // fp32
  at::Tensor nested_offset_;  // fp32 [1]
};

}  // namespace vlmtrain::nn
