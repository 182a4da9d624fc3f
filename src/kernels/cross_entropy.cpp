#include "vlmtrain/kernels/cross_entropy.h"

#include <ATen/ops/empty.h>

#include "kernels/launch.h"

namespace vlmtrain::kernels {

CrossEntropyResult cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double factor,
                                 const at::Tensor& row_factors, bool compute_gradient) {
  const int64_t rows = logits.size(0);
  // One allocation for both results.
  const at::Tensor outputs = at::empty({2, rows, 1}, logits.options().dtype(at::kFloat));
  CrossEntropyResult result{outputs[0], outputs[1]};
  if (rows == 0) return result;
  KernelLaunch("vlmtrain::cross_entropy", {logits, labels}, {outputs, compute_gradient ? logits : outputs[0]})(
      launchers().cross_entropy,
      CrossEntropyArgs{.element = get_element_type(logits),
                       .compute_gradient = compute_gradient,
                       .rows = rows,
                       .vocabulary = logits.size(1),
                       .logits = logits.mutable_data_ptr(),
                       .labels = labels.const_data_ptr<int64_t>(),
                       .row_factors = row_factors.defined() ? row_factors.const_data_ptr<float>() : nullptr,
                       .factor = static_cast<float>(factor),
                       .cross_entropy = result.cross_entropy.mutable_data_ptr<float>(),
                       .is_correct = result.is_correct.mutable_data_ptr<float>()});
  return result;
}

}  // namespace vlmtrain::kernels
