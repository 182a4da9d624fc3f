#include "vlmtrain/nn/matmul.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>

#include "nn/product_ways.h"

namespace vlmtrain::nn {

namespace {

/// Below this oneDNN's fixed cost of a call, or that of a weight's copy in fp32, outweighs its speed.
constexpr int64_t kMinOneDnnRows = 16;

}  // namespace

at::Tensor matmul_transposed(const at::Tensor& a, const at::Tensor& b) {
  const at::NoGradGuard no_gradients;
  if (a.is_cuda() || a.size(0) < kMinOneDnnRows) return at::mm(a, b.t());
  switch (select_matmul_backend(a, b)) {
    case MatmulBackend::kOneDnn:
      return onednn_matmul(a, b);
    case MatmulBackend::kFp32:
      return matmul_transposed(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type());
    case MatmulBackend::kAten:
      break;
  }
  return at::mm(a, b.t());
}

}  // namespace vlmtrain::nn
