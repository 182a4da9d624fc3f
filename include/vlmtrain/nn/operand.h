#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

namespace vlmtrain::nn {

/// A function of few tensors, row by row, whose result only Linears read. It is cheap beside their products, so the
/// backward pass computes it again, and the result is not kept.
class Prologue {
 public:
  struct Made {
    at::Tensor value{};                    ///< [rows, features]
    std::vector<at::Tensor> statistics{};  ///< a few numbers a row, which are kept for the backward pass
    at::Tensor scratch{};                  ///< what backward() would compute again without it; need not be there
  };

  virtual ~Prologue() = default;

  /// `for_backward`: backward() follows, so that scratch is of use. Records no gradients.
  virtual Made make(const std::vector<at::Tensor>& inputs, bool for_backward) const = 0;

  /// The same, with `residual`, [rows, features], added to the value.
  virtual Made make_onto(const std::vector<at::Tensor>& inputs, const at::Tensor& residual) const;

  /// The gradients of `inputs`, undefined where they are not `wanted`, for the value's. `made` has statistics, and
  /// perhaps scratch, which may be overwritten.
  virtual std::vector<at::Tensor> backward(const std::vector<at::Tensor>& inputs, const Made& made,
                                           const at::Tensor& gradient, const std::vector<bool>& wanted) const = 0;

  /// The same, with `passing`, of the first input's shape, added to its gradient, which is wanted.
  virtual std::vector<at::Tensor> backward_beside(const std::vector<at::Tensor>& inputs, const Made& made,
                                                  const at::Tensor& gradient, const std::vector<bool>& wanted,
                                                  const at::Tensor& passing) const;

 protected:
  Prologue() = default;
  Prologue(const Prologue&) = default;
  Prologue& operator=(const Prologue&) = default;
};

/// What Linears read: a tensor, or what a prologue makes of some.
class Operand {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a tensor is an operand as it stands.
  Operand(at::Tensor x) : inputs_{std::move(x)} {}
  Operand(std::shared_ptr<const Prologue> prologue, std::vector<at::Tensor> inputs)
      : prologue_(std::move(prologue)), inputs_(std::move(inputs)) {}

  /// Null: the only input is it.
  const std::shared_ptr<const Prologue>& prologue() const { return prologue_; }
  const std::vector<at::Tensor>& inputs() const { return inputs_; }

  /// [rows, features], with gradients recorded; keeps the inputs alone.
  at::Tensor value() const;
  /// value() + residual, [rows, features].
  at::Tensor added_to(const at::Tensor& residual) const;

 private:
  std::shared_ptr<const Prologue> prologue_;
  std::vector<at::Tensor> inputs_;
};

}  // namespace vlmtrain::nn
