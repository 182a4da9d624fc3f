#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "vlmtrain/nn/quantization.h"

namespace vlmtrain::nn {

/// The weight [out, in] of a Linear: a tensor, or a quantised one that stays as it is.
class LinearWeight {
 public:
  explicit LinearWeight(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  explicit LinearWeight(std::shared_ptr<const QuantizedWeight> quantized) : quantized_(std::move(quantized)) {}

  bool is_quantized() const { return quantized_ != nullptr; }

  /// The tensor itself, or a new one with the quantised values.
  at::Tensor values() const { return quantized_ ? quantized_->dequantize() : tensor_; }

  /// REQUIRES: is_quantized().
  const std::shared_ptr<const QuantizedWeight>& quantized() const { return quantized_; }

 private:
  at::Tensor tensor_;
  std::shared_ptr<const QuantizedWeight> quantized_;
};

/// x Wᵀ (+ b): x [rows, in], bias [out] or undefined → [rows, out]. A quantised weight is dequantised here and once
/// more in the backward pass; in between it is not held.
at::Tensor linear(const at::Tensor& x, const LinearWeight& weight, const at::Tensor& bias);

}  // namespace vlmtrain::nn
