#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/mixers/chunk_layout.h"
#include "vlmtrain/nn/mixers/gated_delta_shape.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::nn {

/// The state of a gated delta net after the rows of each sequence. Unlike keys and values, it does
/// not grow.
struct DeltaNetState {
  at::Tensor states;   ///< fp32 (fp64 for fp64) [sequences, value_heads, key_dim, value_dim]
  at::Tensor history;  ///< the last rows before the convolution [sequences, kernel_size − 1, channels]; 0 before the
                       ///< first row
};

/// A gated delta net (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464) without its output
/// projection: input projections, a causal convolution with SiLU over query, key and value, the
/// delta rule per head, and a gated RMS norm. Parameter names are those of transformers'
/// Qwen3_5GatedDeltaNet. For the backward pass it saves the projections and the output of the rule,
/// and recomputes the rest. Segments never see each other.
class GatedDeltaNet {
 public:
  /// Adds the parameters under `scope`.
  GatedDeltaNet(const ParameterScope& scope, int64_t in_features, const GatedDeltaShape& shape, double norm_eps);

  /// The result of a forward pass.
  struct Output {
    LinearInput value;  ///< [rows, num_outputs()], for the output projection
    at::Tensor stream;  ///< as ResidualBranch::stream
  };

  /// Maps x [rows, in_features]. `layout` has the rows' segments and num_history_rows(). Records
  /// gradients.
  Output operator()(const LinearInput& x, const std::shared_ptr<const ChunkLayout>& layout) const;

  /// Does the same for the prompts of a generation and returns the states after them. Records no
  /// gradients. `segments` are those of `layout`.
  Output prefill(const LinearInput& x, const ChunkLayout& layout, const Segments& segments, DeltaNetState& state) const;
  /// Does the same for one more row per sequence, and updates `state`.
  Output decode(const LinearInput& x, const DeltaNetState& state) const;

 private:
  struct Projected;
  Projected project(const LinearInput& x) const;
  Output finish(const at::Tensor& rule_output, const Projected& projected) const;

  GatedDeltaShape shape_;
  double norm_eps_;
  MergedLinear in_projections_;  // in_proj_qkv, in_proj_z, in_proj_b, in_proj_a
  at::Tensor convolution_;       // [channels, 1, kernel_size]
  at::Tensor a_log_, dt_bias_;   // [value_heads]
  at::Tensor norm_weight_;       // [value_dim]
};

}  // namespace vlmtrain::nn
