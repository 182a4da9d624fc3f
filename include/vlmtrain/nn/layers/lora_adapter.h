#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/nn/layers/dropout.h"
#include "vlmtrain/nn/weights/lora_settings.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/nn/weights/quantized_weight.h"

namespace vlmtrain::nn {

/// The LoRA adapter of one Linear: scale · dropout(x) Aᵀ Bᵀ. Its parameters are named and
/// initialized as in PEFT: `lora_A.weight` [rank, in], uniform in ±1/√in; `lora_B.weight` [out,
/// rank], zero; with DoRA also `lora_magnitude_vector` [out], the row norms of W. Dropout is active
/// only if gradients are needed. The dropout layer is derived from the adapter's path. Adapters
/// that share an input use the layer of the first adapter, with their index as the consumer.
class LoraAdapter {
 public:
  /// Adds the parameters under `scope`. `a_storage` [rank, in]: storage for A; if undefined, new
  /// storage is allocated.
  LoraAdapter(const ParameterScope& scope, const LoraSettings& settings, const at::Tensor& a_storage,
              int64_t in_features, int64_t out_features);

  /// Returns A, [rank, in].
  const at::Tensor& a() const { return a_; }
  /// Returns B, [out, rank].
  const at::Tensor& b() const { return b_; }
  /// Returns the factor of B A; see LoraSettings::scale().
  double scale() const { return scale_; }
  int64_t rank() const { return a_.size(0); }

  /// Returns whether a forward pass that runs now applies dropout: its probability is above 0 and
  /// gradients are needed.
  bool is_dropout_active() const;
  /// Returns the dropouts of `count` adapters that read x [rows, in]; this adapter is the first.
  IndependentDropouts make_dropouts(const at::Tensor& x, int64_t count) const;

  /// Returns whether the adapter uses DoRA.
  bool has_dora() const { return magnitude_.defined(); }

  /// Computes the Linear with DoRA and maps x [rows, in] to [rows, out]; `bias` may be undefined.
  /// Let V = W + scale · B A and f = magnitude / (row norms of V), whose norms get no gradient. The
  /// result is (x − dropout(x)) Wᵀ + b + f · dropout(x) Vᵀ. REQUIRES: has_dora().
  at::Tensor forward_dora(const at::Tensor& x, const LinearWeight& weight, const at::Tensor& bias) const;

 private:
  /// Returns magnitude / (row norms of V), [out], in the dtype of the model.
  at::Tensor compute_mag_norm_scale(const LinearWeight& weight) const;

  at::Tensor a_, b_;
  at::Tensor magnitude_;  // undefined without DoRA
  double scale_;
  double dropout_probability_;  // see LoraSettings::dropout
  uint64_t dropout_layer_id_;
};

/// Returns the Euclidean norm of each row, [out, in] → [out], in fp32 for 16-bit weights.
at::Tensor compute_row_norms(const at::Tensor& weight);

}  // namespace vlmtrain::nn
