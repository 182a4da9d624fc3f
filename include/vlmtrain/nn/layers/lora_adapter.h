#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "vlmtrain/nn/layers/dropout.h"
#include "vlmtrain/nn/linear_weight.h"
#include "vlmtrain/nn/lora_settings.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::nn {

/// What LoRA adds to one Linear: scale · dropout(x) Aᵀ Bᵀ. Its parameters are `lora_A.weight` [rank, in], uniform in
/// ±1/√in, and `lora_B.weight` [out, rank], zero, as in PEFT; with DoRA also `lora_magnitude_vector` [out], the lengths
/// of W's rows. Dropout is that of LoraSettings (nn/dropout.h, by the adapter's path, or by that of the first
/// of a group and the number in it) where gradients are wanted, none elsewhere.
class LoraAdapter {
 public:
  /// `a_storage` [rank, in] is where A lies; undefined: in memory of its own.
  LoraAdapter(const ParameterScope& scope, const LoraSettings& settings, const at::Tensor& a_storage,
              int64_t in_features, int64_t out_features);

  const at::Tensor& a() const { return a_; }
  const at::Tensor& b() const { return b_; }
  double scale() const { return scale_; }
  int64_t rank() const { return a_.size(0); }

  /// Whether what runs now drops.
  bool is_dropout_active() const;
  /// Of `count` adapters that read x, of which this is the first.
  IndependentDropouts make_dropout(const at::Tensor& x, int64_t count) const;

  bool has_dora() const { return magnitude_.defined(); }

  /// x [rows, in] → [rows, out], bias may be undefined. With V = W + scale · B A and f = magnitude / lengths of V's
  /// rows, which no gradient goes through: (x − dropout(x)) Wᵀ + b + f · dropout(x) Vᵀ. REQUIRES: has_dora().
  at::Tensor forward_dora(const at::Tensor& x, const LinearWeight& weight, const at::Tensor& bias) const;

 private:
  /// In the dtype of the model, [out].
  at::Tensor compute_mag_norm_scale(const LinearWeight& weight) const;

  at::Tensor a_, b_;
  at::Tensor magnitude_;  // undefined: no DoRA
  double scale_;
  double dropout_;
  uint64_t dropout_layer_;
};

/// The Euclidean length of each row, in fp32 for 16-bit weights: [out, in] → [out].
at::Tensor compute_row_norms(const at::Tensor& weight);

}  // namespace vlmtrain::nn
