#pragma once

#include <memory>
#include <vector>

#include "vlmtrain/nn/quantization.h"

namespace vlmtrain::nn {

/// What the NF4 weights of a model share: what two neighbouring bytes stand for, the one in the low bits first, as both
/// lie in memory. The values of an entry lie in one number, since ATen looks up numbers much faster than rows.
struct Nf4Tables {
  at::Tensor values;  ///< complex128 [65536]: four values, fp32
  at::Tensor absmax;  ///< int64 [65536]: two values of a block's quantised absmax, fp32
};

Nf4Tables make_nf4_tables(at::Device device);

/// What an NF4 weight holds, of each value's block of blocks as a whole, so that no rest has to be treated apart.
struct Nf4Tensors {
  at::Tensor absmax;         ///< uint8, quantised
  at::Tensor packed;         ///< uint8
  at::Tensor nested_absmax;  ///< fp32
  at::Tensor nested_offset;  ///< fp32 [1]
};

/// Quantization::kNf4. state() are the parts of its tensors that hold something.
class Nf4Weight : public QuantizedWeight {
 public:
  Nf4Weight(at::IntArrayRef sizes, at::ScalarType dtype, Nf4Tensors tensors, Nf4Tables tables);

  /// As nn::dequantize_group.
  static std::vector<at::Tensor> dequantize_group(const std::vector<const Nf4Weight*>& weights);

  void quantize(const at::Tensor& weight) override;
  at::Tensor dequantize() const override;
  std::vector<std::pair<std::string, at::Tensor>> state() const override;
  std::vector<at::Tensor> tensors() const override;

 private:
  class AdjacentWeights;

  int64_t elements() const { return c10::multiply_integers(sizes()); }
  int64_t super_blocks() const { return tensors_.nested_absmax.numel(); }

  at::ScalarType dtype_;
  Nf4Tensors tensors_;
  Nf4Tables tables_;
};

/// Uninitialised ones [out_features[i], in_features]. Their tensors lie end to end: the absmax of all, then what all
/// have packed, in one allocation; the nested ones in one each.
std::vector<std::shared_ptr<Nf4Weight>> make_nf4_weights(const std::vector<int64_t>& out_features, int64_t in_features,
                                                         const at::TensorOptions& options, const Nf4Tables& tables);

}  // namespace vlmtrain::nn
