#include "vlmtrain/kernels/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tanh.h>

#include "kernels/launch.h"
#include "kernels/self_test.h"

namespace vlmtrain::kernels {

CrossEntropyResult cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double factor,
                                 const at::Tensor& row_factors, bool compute_gradient, double logit_soft_cap) {
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
                       .logits_stride = logits.stride(0),
                       .logits = logits.mutable_data_ptr(),
                       .labels = labels.const_data_ptr<int64_t>(),
                       .row_factors = row_factors.defined() ? row_factors.const_data_ptr<float>() : nullptr,
                       .factor = static_cast<float>(factor),
                       .logit_soft_cap = static_cast<float>(logit_soft_cap),
                       .cross_entropy = result.cross_entropy.mutable_data_ptr<float>(),
                       .is_correct = result.is_correct.mutable_data_ptr<float>()});
  return result;
}

namespace reference {

CrossEntropyAndGradient cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double factor,
                                      const at::Tensor& row_factors, double logit_soft_cap) {
  const at::Tensor label = labels.unsqueeze(1);
  at::Tensor logits_fp64 = logits.to(at::kDouble);
  if (logit_soft_cap > 0) logits_fp64 = at::tanh(logits_fp64 / logit_soft_cap) * logit_soft_cap;
  const at::Tensor log_softmax = at::log_softmax(logits_fp64, 1);
  at::Tensor logits_gradient = log_softmax.exp();
  logits_gradient.scatter_add_(1, label, at::full_like(label, -1, logits_gradient.options()));
  logits_gradient.mul_(factor);
  if (row_factors.defined()) logits_gradient.mul_(row_factors.unsqueeze(1));
  if (logit_soft_cap > 0) logits_gradient.mul_(1 - (logits_fp64 / logit_soft_cap).square_());
  const at::Tensor max_logit = logits_fp64.amax(1, /*keepdim=*/true);
  return {log_softmax.gather(1, label).neg_().to(at::kFloat), logits_fp64.gather(1, label).eq(max_logit).to(at::kFloat),
          logits_gradient.to(logits.scalar_type())};
}

}  // namespace reference

std::vector<ComparedTensors> test_cross_entropy(RandomInputs& inputs, const KernelTestSizes& sizes) {
  std::vector<ComparedTensors> compared_tensors;
  constexpr double kSoftCap = 1.5;  // saturates some of the inputs
  for (const int64_t columns : sizes.columns) {
    for (const double logit_soft_cap : {0.0, kSoftCap}) {
      // Rows that begin at multiples of a pack, whether or not they end there.
      const int64_t stride = (columns + 7) / 8 * 8 + 8;
      const at::Tensor logits = inputs.make_tensor({sizes.rows, stride}).narrow(1, 0, columns);
      const at::Tensor row_factors = inputs.make_fp32_tensor({sizes.rows});
      const at::Tensor labels = at::arange(sizes.rows, logits.options().dtype(at::kLong));
      const auto expected = reference::cross_entropy(logits, labels, 1, row_factors, logit_soft_cap);
      const auto actual = cross_entropy(logits, labels, 1, row_factors, /*compute_gradient=*/true, logit_soft_cap);
      compared_tensors.push_back({actual.cross_entropy, expected.cross_entropy});
      compared_tensors.push_back({actual.is_correct, expected.is_correct});
      compared_tensors.push_back({logits, expected.logits_gradient});
    }
  }
  return compared_tensors;
}

}  // namespace vlmtrain::kernels
