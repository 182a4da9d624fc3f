#include "vlmtrain/kernels/gate.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"
#include "kernels/reference.h"

namespace vlmtrain::kernels {
namespace {

constexpr GateActivation kActivations[] = {GateActivation::kSilu, GateActivation::kGeluTanh};

class GatedActivationKernel : public EmulatedKernelTest {
 protected:
  static at::Tensor sample(at::IntArrayRef sizes, at::ScalarType dtype) {
    at::manual_seed(1);
    return at::randn(sizes).mul_(2).to(dtype);
  }
};

TEST_P(GatedActivationKernel, MatchesAtenForwardAndBackward) {
  for (const auto activation : kActivations) {
    for (const auto dtype : kTypes) {
      for (const int64_t columns : kOddColumns) {
        const at::Tensor x = sample({3, 2 * columns}, dtype), gradient = sample({3, columns}, dtype);
        expect_close(gated_activation(x, activation), reference::gated_activation(x, activation));
        expect_close(gated_activation_backward(gradient, x, activation),
                     reference::gated_activation_backward(gradient, x, activation));
      }
    }
  }
}

TEST_P(GatedActivationKernel, PackedAndScalarPathsAgree) {
  for (const auto dtype : kTypes) {
    for (const int64_t columns : {64, 60}) {  // whole packs, and half ones
      const at::Tensor x = sample({2, 2 * columns}, dtype), gradient = sample({2, columns}, dtype);
      // Begins within a pack, so that it is read element by element.
      const at::Tensor misaligned = at::empty({x.numel() + 1}, x.options()).narrow(0, 1, x.numel()).view_as(x).copy_(x);
      for (const auto activation : kActivations) {
        EXPECT_TRUE(at::equal(gated_activation(x, activation), gated_activation(misaligned, activation)));
        EXPECT_TRUE(at::equal(gated_activation_backward(gradient, x, activation),
                              gated_activation_backward(gradient, misaligned, activation)));
      }
    }
  }
}

TEST_P(GatedActivationKernel, GradientMatchesFiniteDifferences) {
  constexpr double kStep = 1e-2;
  for (const auto activation : kActivations) {
    const at::Tensor x = sample({2, 24}, at::kFloat), gradient = sample({2, 12}, at::kFloat);
    const at::Tensor actual = gated_activation_backward(gradient, x, activation);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const auto compute_perturbed_loss = [&](double delta) {
        at::Tensor perturbed = x.clone();
        perturbed.view(-1)[i] += delta;
        return (gated_activation(perturbed, activation) * gradient).sum().item<double>();
      };
      EXPECT_NEAR(actual.view(-1)[i].item<double>(),
                  (compute_perturbed_loss(kStep) - compute_perturbed_loss(-kStep)) / (2 * kStep), 2e-3);
    }
  }
}

TEST_P(GatedActivationKernel, LaunchesNothingForEmptyInput) {
  EXPECT_EQ(gated_activation(at::empty({0, 8}), GateActivation::kSilu).sizes(), at::IntArrayRef({0, 4}));
  EXPECT_EQ(gated_activation_backward(at::empty({0, 4}), at::empty({0, 8}), GateActivation::kSilu).numel(), 0);
}

TEST_P(GatedActivationKernel, HandlesIndicesBeyond32Bits) {
  constexpr int64_t kFeatures = 2048, kRows = (int64_t{1} << 31) / (2 * kFeatures) + 2;
  const at::Tensor x = reserve_tensor({kRows, 2 * kFeatures}, at::kBFloat16);
  const at::Tensor row = sample({1, 2 * kFeatures}, at::kBFloat16), gradient = sample({1, kFeatures}, at::kBFloat16);
  x.narrow(0, kRows - 1, 1).copy_(row);
  settings().last_blocks = 1;
  const at::Tensor value = gated_activation(x, GateActivation::kSilu);
  EXPECT_TRUE(at::equal(value.narrow(0, kRows - 1, 1), gated_activation(row, GateActivation::kSilu)));
  const at::Tensor gradients = reserve_tensor({kRows, kFeatures}, at::kBFloat16);
  gradients.narrow(0, kRows - 1, 1).copy_(gradient);
  EXPECT_TRUE(at::equal(gated_activation_backward(gradients, x, GateActivation::kSilu).narrow(0, kRows - 1, 1),
                        gated_activation_backward(gradient, row, GateActivation::kSilu)));
}

INSTANTIATE_TEST_SUITE_P(Orders, GatedActivationKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels
