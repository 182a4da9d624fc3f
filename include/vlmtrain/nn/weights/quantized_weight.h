#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::nn {

// Codebooks and block-wise quantization of bitsandbytes (bitsandbytes/functional.py and
// backends/default/ops.py).

/// Returns the 16 values of NF4, fp32 [16], ascending.
at::Tensor make_nf4_codebook();

/// Determines whether a dynamic codebook has negative values.
enum class Signedness { kSigned, kUnsigned };

/// Returns the 8-bit dynamic codebook (Dettmers et al. 2022, 8-bit Optimizers via Block-wise
/// Quantization, arXiv 2110.02861): fp32 [256], ascending, with 0 and 1 among its values.
at::Tensor make_dynamic_codebook(Signedness signedness = Signedness::kSigned);

/// Returns the midpoints of neighboring values of `ascending` [n], as [n − 1].
at::Tensor compute_midpoints(const at::Tensor& ascending);

/// Values quantized block by block.
struct QuantizedBlocks {
  at::Tensor indices;  ///< uint8 [n], indices into the codebook
  at::Tensor absmax;   ///< fp32 [blocks], the largest absolute value of each block
};

/// Quantizes `values`, fp32 [n], in blocks of `block_size`; the last block may be shorter. Each
/// value is divided by the largest absolute value of its block and rounded to the nearest value of
/// `codebook`.
QuantizedBlocks quantize_blocks(const at::Tensor& values, int64_t block_size, const at::Tensor& codebook);

/// A frozen weight matrix [out, in] in a quantized format. Only quantize() waits for the device.
class QuantizedWeight {
 public:
  virtual ~QuantizedWeight() = default;
  QuantizedWeight(const QuantizedWeight&) = delete;
  QuantizedWeight& operator=(const QuantizedWeight&) = delete;

  /// Returns the sizes of the weight before quantization, [out, in].
  at::IntArrayRef sizes() const { return sizes_; }

  /// Copies and quantizes a weight [out, in] of any floating-point dtype on any device.
  /// Quantization runs on the CPU.
  virtual void quantize(const at::Tensor& weight) = 0;

  /// Returns a new tensor [out, in] in the dtype of the model. Computes in fp32 and rounds once.
  /// Works in chunks that need at most about 130 MB in addition to the result.
  virtual at::Tensor dequantize() const = 0;
  /// Returns whether a custom kernel dequantizes the weight. Without one, write_dequantized() may take
  /// a copy more than dequantize().
  virtual bool has_dequantize_kernel() const = 0;
  /// Writes the values of dequantize() to `result` [out, in or more columns], whose rows are dense and
  /// may be further apart. The other columns are set to zero.
  virtual void write_dequantized(const at::Tensor& result) const = 0;

  /// Returns the stored tensors by the names of bitsandbytes.
  /// NF4: `weight` uint8 [⌈out · in / 2⌉, 1], two values per byte, the first in the high bits;
  /// `absmax` uint8, one per 64 values; `nested_absmax` fp32, one per 256 absmax; `nested_offset`
  /// fp32 [1].
  /// int8: `weight` int8 [out, in]; `SCB` fp32 [out], the largest absolute value of each row.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() const = 0;

  /// Returns the stored tensors with their padding, which state() leaves out.
  virtual std::vector<at::Tensor> tensors() const = 0;

 protected:
  explicit QuantizedWeight(at::IntArrayRef sizes) : sizes_(sizes.vec()) {}

 private:
  std::vector<int64_t> sizes_;
};

/// Dequantizes several weights at once; the result is bit-identical to dequantize() of each.
/// Returns views of one new tensor. They are adjacent in memory with a custom kernel, or if every
/// weight except the last has a multiple of 16,384 values. Returns an empty vector for formats other
/// than NF4, and for weights that are not consecutive members of one
/// Quantizer::make_weight_group().
std::vector<at::Tensor> dequantize_group(const std::vector<std::shared_ptr<const QuantizedWeight>>& weights);

/// Writes weight i to `results[i]`, rows of one matrix in ascending order, like write_dequantized(),
/// in as few launches as possible.
void write_dequantized_group(const std::vector<std::shared_ptr<const QuantizedWeight>>& weights,
                             const std::vector<at::Tensor>& results);

/// A factory of quantized weights that share the lookup tables of one model.
class Quantizer {
 public:
  /// REQUIRES: `quantization` is not kNone. `options`: the model's device and dtype.
  Quantizer(Quantization quantization, const at::TensorOptions& options);

  /// Returns an uninitialized weight of these sizes, [out, in].
  std::shared_ptr<QuantizedWeight> make_weight(at::IntArrayRef sizes) const;
  /// Returns uninitialized weights [out_features[i], in_features] that dequantize_group() reads at
  /// once.
  std::vector<std::shared_ptr<QuantizedWeight>> make_weight_group(const std::vector<int64_t>& out_features,
                                                                  int64_t in_features) const;

 private:
  Quantization quantization_;
  at::TensorOptions options_;
  at::Tensor nf4_value_table_, nf4_absmax_table_;  // values and absmax of Nf4Tables; undefined for int8
};

/// The weight [out, in] of a Linear: a tensor, or a frozen quantized weight.
class LinearWeight {
 public:
  explicit LinearWeight(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  explicit LinearWeight(std::shared_ptr<const QuantizedWeight> quantized_weight)
      : quantized_weight_(std::move(quantized_weight)) {}

  bool is_quantized() const { return quantized_weight_ != nullptr; }

  /// Returns the tensor itself, or a new tensor of dequantized values.
  at::Tensor values() const { return quantized_weight_ ? quantized_weight_->dequantize() : tensor_; }

  /// REQUIRES: is_quantized().
  const std::shared_ptr<const QuantizedWeight>& quantized_weight() const { return quantized_weight_; }

 private:
  at::Tensor tensor_;
  std::shared_ptr<const QuantizedWeight> quantized_weight_;
};

}  // namespace vlmtrain::nn
