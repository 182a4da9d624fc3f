#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/nn/weights/quantization.h"

namespace vlmtrain::nn {

/// A row-wise function of a few tensors whose result only Linears read, such as a norm. It is cheap
/// compared with their products, so the backward pass recomputes it instead of saving the result.
/// Immutable.
class FusedPrologue {
 public:
  /// The result of forward().
  struct Output {
    at::Tensor value{};                    ///< [rows, features]
    std::vector<at::Tensor> statistics{};  ///< a few numbers per row, saved for the backward pass
    at::Tensor scratch{};                  ///< intermediate result that backward() would recompute; optional
  };

  virtual ~FusedPrologue() = default;

  /// Computes the function. `for_backward`: backward() follows, so scratch is useful. Records no
  /// gradients.
  virtual Output forward(const std::vector<at::Tensor>& inputs, bool for_backward) const = 0;

  /// Computes value + `residual` [rows, features].
  virtual Output forward_add_residual(const std::vector<at::Tensor>& inputs, const at::Tensor& residual) const;

  /// Returns the gradients of `inputs`, given that of the value; undefined where `needs_grad` is
  /// false. `output` has statistics and may have scratch, which may be overwritten.
  virtual std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Output& output,
                                           const at::Tensor& gradient, const std::vector<bool>& needs_grad) const = 0;

  /// The same, with `stream_gradient` added to the gradient of the first input. REQUIRES:
  /// needs_grad[0].
  virtual std::vector<at::Tensor> backward_with_stream(const std::vector<at::Tensor>& inputs, const Output& output,
                                                       const at::Tensor& gradient, const std::vector<bool>& needs_grad,
                                                       const at::Tensor& stream_gradient) const;

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
  LinearInput(std::shared_ptr<const FusedPrologue> prologue, std::vector<at::Tensor> inputs)
      : prologue_(std::move(prologue)), inputs_(std::move(inputs)) {}

  /// Returns the function; null if the input is a plain tensor.
  const std::shared_ptr<const FusedPrologue>& prologue() const { return prologue_; }
  const std::vector<at::Tensor>& inputs() const { return inputs_; }

  /// Returns [rows, features] with gradients recorded. Saves only the inputs.
  at::Tensor value() const;
  /// Returns value() + residual, [rows, features].
  at::Tensor add_residual(const at::Tensor& residual) const;

 private:
  std::shared_ptr<const FusedPrologue> prologue_;
  std::vector<at::Tensor> inputs_;
};

/// Returns x Wᵀ (+ b): x [rows, in], weight [out, in], bias [out] or undefined → [rows, out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// The same with a possibly quantized weight, which is dequantized in the forward and again in the
/// backward pass, and not kept between them.
at::Tensor linear(const at::Tensor& x, const LinearWeight& weight, const at::Tensor& bias);

/// The result of Linears that read a norm of the residual stream, together with the stream.
/// Gradients of `stream` are added where the norm computes its own.
struct Branch {
  at::Tensor value;   ///< [rows, sum of out_features]
  at::Tensor stream;  ///< the first input of the LinearInput

  /// Returns the value and releases it, so it does not live as long as the branch.
  at::Tensor take_value() { return std::exchange(value, {}); }
};

struct LinearGroup;

/// A group of Linears that share one input, computed as one product. Each has its own name and
/// parameters; weights are quantized, and adapters are added, as the store's settings say. Weights
/// are adjacent in memory where possible. The inputs of the LinearInput are saved for the backward
/// pass, not its value. Immutable.
class Linears {
 public:
  /// `initial_gain` scales the random initial weights, for projections that end a residual branch.
  Linears(const std::vector<ParameterScope>& scopes, int64_t in_features, const std::vector<int64_t>& out_features,
          bool bias, double initial_gain = 1);
  /// Creates the Linears at `scope` / each of `names`.
  Linears(const ParameterScope& scope, const std::vector<const char*>& names, int64_t in_features,
          const std::vector<int64_t>& out_features, bool bias);

  /// Maps x [rows, in] to [rows, sum of out_features], the columns of each Linear in order.
  /// `residual` of that shape is added if defined.
  at::Tensor operator()(const LinearInput& x, const at::Tensor& residual = {}) const;

  /// Returns the result together with the first input of x, see Branch.
  Branch branch(const LinearInput& x) const;

 private:
  std::shared_ptr<const LinearGroup> group_;
};

/// A single Linear.
class Linear {
 public:
  /// See Linears.
  Linear(const ParameterScope& scope, int64_t in_features, int64_t out_features, bool bias, double initial_gain = 1)
      : linears_({scope}, in_features, {out_features}, bias, initial_gain) {}

  /// x [rows, in] → [rows, out]
  at::Tensor operator()(const LinearInput& x, const at::Tensor& residual = {}) const { return linears_(x, residual); }

  Branch branch(const LinearInput& x) const { return linears_.branch(x); }

 private:
  Linears linears_;
};

}  // namespace vlmtrain::nn
