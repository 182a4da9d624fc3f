#pragma once

#include "vlmtrain/nn/quantization.h"

namespace vlmtrain::nn {

/// What the NF4 weights of a model share: what two neighbouring bytes stand for, the one in the low bits first, as both
/// lie in memory. The values of an entry lie in one number, since ATen looks up numbers much faster than rows.
struct Nf4Tables {
  at::Tensor values;  ///< complex128 [65536]: four values, fp32
  at::Tensor absmax;  ///< int64 [65536]: two values of a block's quantised absmax, fp32
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
  at::Tensor quantized_absmax() const;
  at::Tensor packed() const;
  /// fp32 [blocks, 1] of these pairs of quantised absmax, which are those of all blocks.
  at::Tensor absmax_of(const at::Tensor& pairs) const;

  at::ScalarType dtype_;
  Nf4Tables tables_;
  int64_t elements_;
  int64_t blocks_;
  int64_t super_blocks_;
  at::Tensor bytes_;          // uint8: the quantised absmax, then the packed values
  at::Tensor nested_absmax_;  // fp32
  at::Tensor nested_offset_;  // fp32 [1]
};

}  // namespace vlmtrain::nn
