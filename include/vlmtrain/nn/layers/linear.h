#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "vlmtrain/nn/layers/dropout.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/nn/weights/quantized_weight.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::nn {

/// A row-wise function of a few tensors, such as a norm, whose result only Linears read. It is
/// cheap compared with their matrix products, so the backward pass recomputes the result instead of
/// saving it. Immutable.
class FusedPrologue {
 public:
  /// The result of forward().
  struct Output {
    at::Tensor value{};                    ///< [rows, features]
    std::vector<at::Tensor> statistics{};  ///< a few numbers per row, saved for the backward pass
    at::Tensor scratch{};                  ///< intermediate result that saves backward() work; may be undefined
  };

  virtual ~FusedPrologue() = default;

  /// Computes the function. `for_backward`: backward() follows, so `scratch` should be set. Records
  /// no gradients.
  virtual Output forward(const std::vector<at::Tensor>& inputs, bool for_backward) const = 0;

  /// Does the same as forward() without `for_backward`. Rows of the value may have a border of
  /// `border_columns` columns (kernels/rows.h); without a kernel that leaves one, they have none.
  virtual Output forward_with_border(const std::vector<at::Tensor>& inputs, int64_t border_columns) const;

  /// Computes the function and adds `residual` [rows, features] to the value.
  virtual Output forward_add_residual(const std::vector<at::Tensor>& inputs, const at::Tensor& residual) const;

  /// Returns the gradients of `inputs`, given `gradient`, the gradient of the value. An entry is
  /// undefined if its `needs_grad` is false. `output` has the statistics; its value may be
  /// undefined. Its scratch, if defined, may be overwritten.
  virtual std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Output& output,
                                           const at::Tensor& gradient, const std::vector<bool>& needs_grad) const = 0;

  /// Does the same as backward() and adds `residual_stream_gradient`, a gradient of the residual
  /// stream, to the gradient of the first input. REQUIRES: needs_grad[0].
  virtual std::vector<at::Tensor> backward_add_residual_gradient(const std::vector<at::Tensor>& inputs,
                                                                 const Output& output, const at::Tensor& gradient,
                                                                 const std::vector<bool>& needs_grad,
                                                                 const at::Tensor& residual_stream_gradient) const;

 protected:
  FusedPrologue() = default;
  FusedPrologue(const FusedPrologue&) = default;
  FusedPrologue& operator=(const FusedPrologue&) = default;
};

/// The input of a Linear: a tensor, or a function of tensors that the backward pass recomputes.
class LinearInput {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a plain tensor is a valid input.
  LinearInput(at::Tensor x) : inputs_{std::move(x)} {}
  /// The input prologue(inputs).
  LinearInput(std::shared_ptr<const FusedPrologue> prologue, std::vector<at::Tensor> inputs)
      : prologue_(std::move(prologue)), inputs_(std::move(inputs)) {}

  /// Returns the function; null if the input is a plain tensor.
  const std::shared_ptr<const FusedPrologue>& prologue() const { return prologue_; }
  const std::vector<at::Tensor>& inputs() const { return inputs_; }

  /// Returns the input as a tensor [rows, features] and records gradients. Saves only the inputs.
  at::Tensor value() const;
  /// Returns value() + residual, [rows, features].
  at::Tensor add_residual(const at::Tensor& residual) const;

 private:
  std::shared_ptr<const FusedPrologue> prologue_;
  std::vector<at::Tensor> inputs_;
};

/// Returns x Wᵀ (+ b), [rows, out], for x [rows, in], weight [out, in], and bias [out] or
/// undefined. Records gradients.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// Returns the same for a weight that may be quantized. It is dequantized in the forward pass and
/// again in the backward pass, and not kept between them.
at::Tensor linear(const at::Tensor& x, const LinearWeight& weight, const at::Tensor& bias);

/// The result of Linears that read a norm of the residual stream, and the stream itself. Modules
/// add `stream` to their output instead of the original tensor: the norm's backward pass then adds
/// the gradient of `stream` to its own, without another pass over memory.
struct ResidualBranch {
  at::Tensor value;   ///< [rows, sum of out_features]
  at::Tensor stream;  ///< the first input of the LinearInput, unchanged

  /// Returns the value and removes it from the branch, so its memory is freed with the caller's
  /// copy.
  at::Tensor take_value() { return std::exchange(value, {}); }
};

struct LinearGroup;

/// The columns of a MergedLinear's result.
enum class OutputColumns : uint8_t {
  kDense,    ///< the columns of each Linear follow those of the one before
  kStrided,  ///< the same, but rows may be further apart; for readers that support it, such as norms and RoPE
  /// Each Linear has align_width(out_features) columns (nn/weights/row_alignment.h), those beyond
  /// out_features zero. For activations of which 0 is a fixed point, whose value another Linear
  /// reads. With DoRA, too. Rows may be further apart.
  kAligned,
};

/// A group of Linears that share one input, such as q_proj, k_proj and v_proj, computed as one
/// product. Each has its own name and parameters. The store's settings determine whether weights
/// are quantized and whether adapters are added. Weights are adjacent in memory if possible. For
/// the backward pass, the inputs of the LinearInput are saved, not its value. Immutable.
class MergedLinear {
 public:
  /// Adds the parameters `weight` [out_features[i], in_features] and, if `bias`, `bias`
  /// [out_features[i]] under scopes[i]. `initial_gain` scales the random initial weights, for
  /// projections that end a residual branch. REQUIRES: one scope per entry of `out_features`, all
  /// of one store.
  MergedLinear(const std::vector<ParameterScope>& scopes, int64_t in_features, const std::vector<int64_t>& out_features,
               bool bias, double initial_gain = 1, OutputColumns output_columns = OutputColumns::kDense);
  /// Does the same with the scopes `scope` / names[i].
  MergedLinear(const ParameterScope& scope, const std::vector<const char*>& names, int64_t in_features,
               const std::vector<int64_t>& out_features, bool bias,
               OutputColumns output_columns = OutputColumns::kDense);

  /// Maps x [rows, in] to [rows, columns], the columns of each Linear in order (OutputColumns). x may
  /// have align_width(in) columns, those beyond `in` zero. Adds `residual` of the result's shape if it
  /// is defined; the rows of the sum may be further apart, as with kStrided. Records gradients.
  at::Tensor operator()(const LinearInput& x, const at::Tensor& residual = {}) const;

  /// Returns the result and the first input of x; see ResidualBranch.
  ResidualBranch forward_branch(const LinearInput& x) const;

 private:
  std::shared_ptr<const LinearGroup> linear_group_;
};

/// A single Linear.
class Linear {
 public:
  /// See MergedLinear.
  Linear(const ParameterScope& scope, int64_t in_features, int64_t out_features, bool bias, double initial_gain = 1,
         OutputColumns output_columns = OutputColumns::kDense)
      : merged_linear_({scope}, in_features, {out_features}, bias, initial_gain, output_columns) {}

  /// See MergedLinear.
  at::Tensor operator()(const LinearInput& x, const at::Tensor& residual = {}) const {
    return merged_linear_(x, residual);
  }

  ResidualBranch forward_branch(const LinearInput& x) const { return merged_linear_.forward_branch(x); }

 private:
  MergedLinear merged_linear_;
};

/// The LoRA adapter of one Linear: scale · dropout(x) Aᵀ Bᵀ. Its parameters are named and
/// initialized as in PEFT: `lora_A.weight` [rank, in], uniform in ±1/√in; `lora_B.weight` [out,
/// rank], zero; with DoRA also `lora_magnitude_vector` [out], the row norms of W. Dropout is active
/// only if gradients are needed. The dropout layer is derived from the adapter's path. Adapters
/// that share an input use the layer of the first adapter, with their index as the consumer.
class LoraAdapter {
 public:
  /// Storage for the parameters; undefined tensors are allocated.
  struct Storage {
    at::Tensor a;  ///< [rank, in]
    at::Tensor b;  ///< [out, rank]
  };

  /// Adds the parameters under `scope`.
  LoraAdapter(const ParameterScope& scope, const LoraSettings& settings, const Storage& storage, int64_t in_features,
              int64_t out_features);

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
