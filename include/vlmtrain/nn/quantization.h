#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace vlmtrain::nn {

/// How the frozen weights of Linears are held; both are formats of bitsandbytes.
enum class Quantization {
  kNone,
  kNf4,   ///< 4-bit NormalFloat with double quantisation (Dettmers et al. 2023, QLoRA, arXiv 2305.14314)
  kInt8,  ///< LLM.int8's rows of int8 (Dettmers et al. 2022, arXiv 2208.07339), without its outlier columns
};

/// By the names that the configuration and --quantization use.
const std::vector<std::pair<std::string, Quantization>>& quantization_names();
std::string to_string(Quantization quantization);

/// A frozen weight matrix [out, in] in fewer bits. No call but `quantize` reads a value back from the device.
class QuantizedWeight {
 public:
  virtual ~QuantizedWeight() = default;
  QuantizedWeight(const QuantizedWeight&) = delete;
  QuantizedWeight& operator=(const QuantizedWeight&) = delete;

  at::IntArrayRef sizes() const { return sizes_; }

  /// Takes over the values of a weight [out, in] of any floating dtype, on any device. They are quantised on the CPU.
  virtual void quantize(const at::Tensor& weight) = 0;

  /// The values in the dtype of the model, [out, in]: a new tensor, which only the caller holds. Computed in fp32 and
  /// rounded once, piece by piece: beside the result it needs some 130 MB at most.
  virtual at::Tensor dequantize() const = 0;

  /// What is held, by the names of bitsandbytes:
  /// NF4: `weight` uint8 [⌈out · in / 2⌉, 1], two values a byte, the first in the high bits; `absmax` uint8, one for 64
  /// values; `nested_absmax` fp32, one for 256 of these; `nested_offset` fp32 [1].
  /// int8: `weight` int8 [out, in]; `SCB` fp32 [out], the largest absolute value of each row.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() const = 0;

  /// The tensors that it consists of, whole: what state() shows, and what it is filled up with.
  virtual std::vector<at::Tensor> tensors() const = 0;

 protected:
  explicit QuantizedWeight(at::IntArrayRef sizes) : sizes_(sizes.vec()) {}

 private:
  std::vector<int64_t> sizes_;
};

/// The values of several weights at once, to the bit what dequantize() gives of each: views of one new tensor, end to
/// end unless a weight but the last is no multiple of 16,384 values. Empty where it cannot be: of other formats than
/// NF4, and of weights that do not lie as Quantizer::make_group made them, one after another.
std::vector<at::Tensor> dequantize_group(const std::vector<std::shared_ptr<const QuantizedWeight>>& weights);

/// Makes the quantised weights of a model, which share its tables.
class Quantizer {
 public:
  /// `options`: the model's device and dtype.
  Quantizer(Quantization quantization, const at::TensorOptions& options);

  /// Uninitialised.
  std::shared_ptr<QuantizedWeight> make(at::IntArrayRef sizes) const;
  /// Weights [out_features[i], in_features] of one operand, for dequantize_group.
  std::vector<std::shared_ptr<QuantizedWeight>> make_group(const std::vector<int64_t>& out_features,
                                                           int64_t in_features) const;

 private:
  Quantization quantization_;
  at::TensorOptions options_;
  at::Tensor nf4_pairs_, dynamic_map_;  // src/nn/nf4.h; undefined for int8
};

}  // namespace vlmtrain::nn
