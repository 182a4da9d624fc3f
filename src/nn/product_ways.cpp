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
#include <vector>

#include "vlmtrain/base/error.h"
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

struct Way {
  ProductWay way;
  /// Times as fast as those before it that it has to be to be taken.
  double lead;
};

struct Size {
  int64_t rows, columns, depth;
};

/// ATen's own loops of 16 bits reach one GFLOP/s.
constexpr Size kOf16Bits{128, 128, 128};
constexpr int kRounds = 8;
/// So many times as slow as another is not raced again.
constexpr double kHopeless = 8;

at::Tensor product(ProductWay way, const at::Tensor& a, const at::Tensor& b) {
  switch (way) {
    case ProductWay::kOneDnn:
      return onednn_product(a, b);
    case ProductWay::kAten:
      return at::mm(a, b.t());
    case ProductWay::kAtenInFp32:
      return at::mm(a.to(at::kFloat), b.to(at::kFloat).t()).to(a.scalar_type());
  }
  throw InternalError("unknown way of a product");
}

at::Tensor factor(int64_t rows, int64_t depth, bool is_transposed, at::ScalarType dtype) {
  const auto options = at::TensorOptions(at::kCPU).dtype(dtype);
  return is_transposed ? at::full({depth, rows}, 0.5, options).t() : at::full({rows, depth}, 0.5, options);
}

/// What comes between a process and its processor takes time from all in turn: the shortest of each counts.
ProductWay fastest(const std::vector<Way>& ways, Form form, const Size& size, at::ScalarType dtype) {
  const at::NoGradGuard no_gradients;
  const memory::Unwatched unwatched;
  const at::DisableRecordFunctionGuard unrecorded;
  const at::Tensor a = factor(size.rows, size.depth, form.first, dtype);
  const at::Tensor b = factor(size.columns, size.depth, form.second, dtype);
  std::vector<double> seconds(ways.size(), std::numeric_limits<double>::infinity());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      if (seconds[i] > kHopeless * *std::ranges::min_element(seconds)) continue;
      const auto start = std::chrono::steady_clock::now();
      static_cast<void>(product(ways[i].way, a, b));
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      seconds[i] = std::min(seconds[i], taken.count());
    }
  }
  size_t best = 0;
  for (size_t i = 1; i < ways.size(); ++i) {
    if (seconds[i] * ways[i].lead < seconds[best]) best = i;
  }
  return ways[best].way;
}

ProductWay raced(Form form, at::ScalarType dtype) {
  return fastest({{ProductWay::kAten, 1}, {ProductWay::kAtenInFp32, 3}}, form, kOf16Bits, dtype);
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
