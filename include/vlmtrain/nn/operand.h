#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

namespace vlmtrain::nn {

/// A function of few tensors, row by row, whose result only Linears read. It is cheap beside their products, so the
/// backward pass computes it again, and the result is not kept.
class FusedPrologue {
 public:
  struct Output {
    at::Tensor value{};                    ///< [rows, features]
    std::vector<at::Tensor> statistics{};  ///< a few numbers a row, which are kept for the backward pass
    at::Tensor scratch{};                  ///< what backward() would compute again without it; need not be there
  };

  virtual ~FusedPrologue() = default;

  /// `for_backward`: backward() follows, so that scratch is of use. Records no gradients.
  virtual Output forward(const std::vector<at::Tensor>& inputs, bool for_backward) const = 0;

  /// The same, with `residual`, [rows, features], added to the value.
  virtual Output forward_add_residual(const std::vector<at::Tensor>& inputs, const at::Tensor& residual) const;

  /// The gradients of `inputs`, undefined where they are not `needs_grad`, for the value's. `output` has statistics,
  /// and perhaps scratch, which may be overwritten.
  virtual std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Output& output,
                                           const at::Tensor& gradient, const std::vector<bool>& needs_grad) const = 0;

  /// The same, with `stream_gradient`, of the first input's shape, added to its gradient, which is wanted.
  virtual std::vector<at::Tensor> backward_with_stream(const std::vector<at::Tensor>& inputs, const Output& output,
                                                       const at::Tensor& gradient, const std::vector<bool>& needs_grad,
                                                       const at::Tensor& stream_gradient) const;

 protected:
  FusedPrologue() = default;
  FusedPrologue(const FusedPrologue&) = default;
  FusedPrologue& operator=(const FusedPrologue&) = default;
};

/// What Linears read: a tensor, or what a prologue makes of some.
class LinearInput {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a tensor is an operand as it stands.
  LinearInput(at::Tensor x) : inputs_{std::move(x)} {}
  LinearInput(std::shared_ptr<const FusedPrologue> prologue, std::vector<at::Tensor> inputs)
      : prologue_(std::move(prologue)), inputs_(std::move(inputs)) {}

  /// Null: the only input is it.
  const std::shared_ptr<const FusedPrologue>& prologue() const { return prologue_; }
  const std::vector<at::Tensor>& inputs() const { return inputs_; }

  /// [rows, features], with gradients recorded; keeps the inputs alone.
  at::Tensor value() const;
  /// value() + residual, [rows, features].
  at::Tensor add_residual(const at::Tensor& residual) const;

 private:
  std::shared_ptr<const FusedPrologue> prologue_;
  std::vector<at::Tensor> inputs_;
};

}  // namespace vlmtrain::nn
