#pragma once

#include "vlmtrain/nn/quantization.h"

namespace vlmtrain::nn {

/// Quantization::kInt8.
class Int8Weight : public QuantizedWeight {
 public:
  Int8Weight(at::IntArrayRef sizes, const at::TensorOptions& options);

  /// Through fp16, as bitsandbytes' Int8Params.
  void quantize(const at::Tensor& weight) override;
  at::Tensor dequantize() const override;
  std::vector<std::pair<std::string, at::Tensor>> state() const override;
  std::vector<at::Tensor> tensors() const override;

 private:
  at::ScalarType dtype_;
  at::Tensor values_;      // int8 [out, in]
  at::Tensor row_absmax_;  // fp32 [out]
};

}  // namespace vlmtrain::nn
