#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "vlmtrain/nn/linear_weight.h"
#include "vlmtrain/nn/operand.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::nn {

/// x Wᵀ (+ b): x [rows, in], weight [out, in], bias [out] or undefined → [rows, out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// What Linears make of a norm of the residual stream, and the stream as it goes on past them: the gradient that comes
/// back along it is added where the norm's own is computed.
struct Branch {
  at::Tensor value;   ///< [rows, sum of out]
  at::Tensor stream;  ///< the operand's first input

  /// The value for whom reads it last, so that it does not live as long as the branch.
  at::Tensor take_value() { return std::exchange(value, {}); }
};

struct LinearGroup;

/// Linears of one operand, with parameters of their own: the weights quantised where the store's settings ask for it,
/// and adapters where its LoraSettings do. Each has its place in the tree of names, but their weights lie end to end,
/// so that what is computed of all is one product. The operand's inputs are kept for the backward pass, not its value.
class Linears {
 public:
  /// `initial_gain` scales the random start, for the projections that end a residual branch.
  Linears(const std::vector<ParameterScope>& scopes, int64_t in_features, const std::vector<int64_t>& out_features,
          bool bias, double initial_gain = 1);
  /// At `scope` / each of `names`.
  Linears(const ParameterScope& scope, const std::vector<const char*>& names, int64_t in_features,
          const std::vector<int64_t>& out_features, bool bias);

  /// x [rows, in] → [rows, sum of out], the columns of one Linear after those of another. `residual` of that shape is
  /// added where it is defined.
  at::Tensor operator()(const LinearInput& x, const at::Tensor& residual = {}) const;

  Branch branch(const LinearInput& x) const;

 private:
  std::shared_ptr<const LinearGroup> group_;
};

/// One of them.
class Linear {
 public:
  Linear(const ParameterScope& scope, int64_t in_features, int64_t out_features, bool bias, double initial_gain = 1)
      : linears_({scope}, in_features, {out_features}, bias, initial_gain) {}

  /// x [rows, in] → [rows, out]
  at::Tensor operator()(const LinearInput& x, const at::Tensor& residual = {}) const { return linears_(x, residual); }

  Branch branch(const LinearInput& x) const { return linears_.branch(x); }

 private:
  Linears linears_;
};

}  // namespace vlmtrain::nn
