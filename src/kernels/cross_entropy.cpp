#include "vlmtrain/kernels/cross_entropy.h"

#include <ATen/ops/empty.h>

#include "kernels/launch.h"

namespace vlmtrain::kernels {

RowsOfCrossEntropy cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double factor,
                                 const at::Tensor& row_factors, bool gradient_wanted) {
  const int64_t rows = logits.size(0);
  const at::Tensor both = at::empty({2, rows, 1}, logits.options().dtype(at::kFloat));
  RowsOfCrossEntropy result{both[0], both[1]};
  if (rows == 0) return result;
  Launch("vlmtrain::cross_entropy", {logits, labels}, {both, gradient_wanted ? logits : both[0]})(
      launchers().cross_entropy,
      CrossEntropy{.element = element_of(logits),
                   .gradient_wanted = gradient_wanted,
                   .rows = rows,
                   .vocabulary = logits.size(1),
                   .logits = logits.mutable_data_ptr(),
                   .labels = labels.const_data_ptr<int64_t>(),
                   .row_factors = row_factors.defined() ? row_factors.const_data_ptr<float>() : nullptr,
                   .factor = static_cast<float>(factor),
                   .cross_entropy = result.cross_entropy.mutable_data_ptr<float>(),
                   .is_right = result.is_right.mutable_data_ptr<float>()});
  return result;
}

}  // namespace vlmtrain::kernels
