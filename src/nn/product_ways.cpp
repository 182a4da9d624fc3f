#include "nn/product_ways.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <optional>
#include <string_view>

#include "vlmtrain/memory/unwatched.h"

namespace vlmtrain::nn {

namespace {

using Scalars = c10::List<std::optional<at::Scalar>>;
using LinearPointwise = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                   std::string_view, Scalars, std::optional<std::string_view>);

/// Which factors are transposed views.
struct Form {
  bool first = false;
  bool second = false;
};

/// Rows, columns and depth of what is raced: ATen's own loops of 16 bits reach one GFLOP/s.
constexpr int64_t kSide = 128;
constexpr int kRounds = 8;
/// Times as fast as LibTorch's product of 16 bits that fp32 has to be: a process finds what the one before it found.
constexpr double kLead = 3;
/// What is so many times as slow as another, in each of so many rounds, is not raced again: in one alone the processor
/// may have been at something else.
constexpr double kHopeless = 8;
constexpr int kFewestRounds = 4;

at::Tensor product_in_fp32(const at::Tensor& a, const at::Tensor& b) {
  return onednn_product(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type());
}

at::Tensor factor(bool is_transposed, at::ScalarType dtype) {
  const at::Tensor made = at::full({kSide, kSide}, 0.5, at::TensorOptions(at::kCPU).dtype(dtype));
  return is_transposed ? made.t() : made;
}

template <typename Product>
void take_time(const Product& product, double& shortest) {
  const auto start = std::chrono::steady_clock::now();
  static_cast<void>(product());
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  shortest = std::min(shortest, taken.count());
}

/// What comes between a process and its processor takes time from both in turn: the shortest of each counts. The first
/// of each does not, in which oneDNN makes the kernel: a hundred times as long, which would look hopeless.
ProductWay raced(Form form, at::ScalarType dtype) {
  const at::NoGradGuard no_gradients;
  const memory::Unwatched unwatched;
  const at::DisableRecordFunctionGuard unrecorded;
  const at::Tensor a = factor(form.first, dtype), b = factor(form.second, dtype);
  double as_they_are = std::numeric_limits<double>::infinity(), in_fp32 = as_they_are;
  const auto product = [&] { return at::mm(a, b.t()); };
  const auto product_of_fp32 = [&] { return product_in_fp32(a, b); };
  static_cast<void>(product());
  static_cast<void>(product_of_fp32());
  for (int round = 0; round < kRounds; ++round) {
    if (round < kFewestRounds || as_they_are < kHopeless * in_fp32) take_time(product, as_they_are);
    take_time(product_of_fp32, in_fp32);
  }
  return in_fp32 * kLead < as_they_are ? ProductWay::kInFp32 : ProductWay::kAten;
}

/// Once in a process.
template <at::ScalarType dtype>
ProductWay known(Form form) {
  static const std::array<ProductWay, 4> ways{raced({false, false}, dtype), raced({false, true}, dtype),
                                              raced({true, false}, dtype), raced({true, true}, dtype)};
  return ways[(form.first ? 2U : 0U) + (form.second ? 1U : 0U)];
}

bool is_transposed(const at::Tensor& x) {
  return !x.is_contiguous() && x.t().is_contiguous();
}

}  // namespace

ProductWay product_way(const at::Tensor& a, const at::Tensor& b) {
  const Form form{is_transposed(a), is_transposed(b)};
  switch (a.scalar_type()) {
    case at::kFloat:
      return ProductWay::kOneDnn;
    case at::kBFloat16:
      return known<at::kBFloat16>(form);
    case at::kHalf:
      return known<at::kHalf>(form);
    default:
      return ProductWay::kAten;
  }
}

at::Tensor onednn_product(const at::Tensor& a, const at::Tensor& b) {
  static const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<LinearPointwise>();
  return operation.call(a, b, /*bias=*/std::nullopt, /*attr=*/"none", Scalars(), /*algorithm=*/std::nullopt);
}

}  // namespace vlmtrain::nn
