#pragma once

#include <memory>
#include <vector>

#include "vlmtrain/nn/weights/quantized_weight.h"

namespace vlmtrain::nn {

/// Lookup tables for pairs of bytes, shared by the NF4 weights of a model. The low bits of an index
/// are the byte at the lower address. An entry packs its values into one number, because ATen
/// gathers numbers much faster than rows.
struct Nf4Tables {
  at::Tensor values;  ///< complex128 [65536]: the four fp32 values of two packed bytes
  at::Tensor absmax;  ///< int64 [65536]: the fp32 values of two quantized absmax
};

/// Returns the tables on `device`.
Nf4Tables make_nf4_tables(at::Device device);

/// The tensors of an NF4 weight. A block has 64 values, a superblock 256 blocks. The tensors are
/// padded to whole superblocks, so that no remainder needs separate treatment.
struct Nf4Tensors {
  at::Tensor absmax;         ///< uint8 [superblocks · 256]: code of each block's absmax
  at::Tensor packed;         ///< uint8 [superblocks · 8192]: two values per byte
  at::Tensor nested_absmax;  ///< fp32 [superblocks]: scale of the absmax codes
  at::Tensor nested_offset;  ///< fp32 [1]: mean of the absmax values, subtracted before their quantization
};

/// A weight in Quantization::kNf4. state() returns the tensors without padding.
class Nf4Weight : public QuantizedWeight {
 public:
  /// `sizes`: [out, in]. `dtype`: dtype of the dequantized values. `tensors` may be uninitialized.
  Nf4Weight(at::IntArrayRef sizes, at::ScalarType dtype, Nf4Tensors tensors, Nf4Tables tables);

  /// Implements nn::dequantize_group() for NF4 weights.
  static std::vector<at::Tensor> dequantize_group(const std::vector<const Nf4Weight*>& weights);
  /// Implements nn::write_dequantized_group() with one launch. Returns false and does nothing without a
  /// custom kernel, or if the weights are not adjacent.
  static bool write_dequantized_group(const std::vector<const Nf4Weight*>& weights,
                                      const std::vector<at::Tensor>& results);

  void quantize(const at::Tensor& weight) override;
  at::Tensor dequantize() const override;
  bool has_dequantize_kernel() const override;
  void write_dequantized(const at::Tensor& result) const override;
  std::vector<std::pair<std::string, at::Tensor>> state() const override;
  std::vector<at::Tensor> tensors() const override;

 private:
  class AdjacentWeights;

  int64_t elements() const { return c10::multiply_integers(sizes()); }
  int64_t num_super_blocks() const { return tensors_.nested_absmax.numel(); }

  at::ScalarType dtype_;
  Nf4Tensors tensors_;
  Nf4Tables tables_;
};

/// Returns uninitialized weights [out_features[i], in_features] whose tensors are adjacent. One
/// allocation holds the absmax of all weights and then their packed values; nested_absmax and
/// nested_offset have one allocation each.
std::vector<std::shared_ptr<Nf4Weight>> make_nf4_weights(const std::vector<int64_t>& out_features, int64_t in_features,
                                                         const at::TensorOptions& options, const Nf4Tables& tables);

}  // namespace vlmtrain::nn
