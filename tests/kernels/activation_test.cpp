#include "vlmtrain/kernels/activation.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"

namespace vlmtrain::kernels {
namespace {

constexpr ActivationFunction kFunctions[] = {ActivationFunction::kGelu, ActivationFunction::kGeluTanh,
                                             ActivationFunction::kQuickGelu, ActivationFunction::kRelu};

class ActivationKernel : public EmulatedKernelTest {
 protected:
  static at::Tensor sample(at::IntArrayRef sizes, at::ScalarType dtype) {
    at::manual_seed(1);
    return at::randn(sizes).mul_(2).to(dtype);
  }
};

TEST_P(ActivationKernel, MatchesAtenForwardAndBackward) {
  for (const auto function : kFunctions) {
    for (const auto dtype : kTypes) {
      for (const int64_t columns : kOddColumns) {
        const at::Tensor x = sample({3, columns}, dtype), gradient = sample({3, columns}, dtype);
        expect_close(activate(x, function), reference::activate(x, function));
        expect_close(activation_backward(gradient, x, function), reference::activation_backward(gradient, x, function));
      }
    }
  }
}

TEST_P(ActivationKernel, PackedAndScalarPathsAgree) {
  for (const auto dtype : kTypes) {
    const at::Tensor x = sample({2, 128}, dtype);
    // Misaligned, so that it is read element by element.
    const at::Tensor misaligned = at::empty({2 * 128 + 1}, x.options()).narrow(0, 1, 2 * 128).view({2, 128}).copy_(x);
    EXPECT_TRUE(
        at::equal(activate(x, ActivationFunction::kQuickGelu), activate(misaligned, ActivationFunction::kQuickGelu)));
  }
}

TEST_P(ActivationKernel, GradientMatchesFiniteDifferences) {
  constexpr double kStep = 1e-2;
  for (const auto function : kFunctions) {
    const at::Tensor x = sample({2, 24}, at::kFloat), gradient = at::randn({2, 24});
    const at::Tensor actual = activation_backward(gradient, x, function);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const auto compute_perturbed_loss = [&](double delta) {
        at::Tensor perturbed = x.clone();
        perturbed.view(-1)[i] += delta;
        return (activate(perturbed, function) * gradient).sum().item<double>();
      };
      EXPECT_NEAR(actual.view(-1)[i].item<double>(),
                  (compute_perturbed_loss(kStep) - compute_perturbed_loss(-kStep)) / (2 * kStep), 2e-3);
    }
  }
}

TEST_P(ActivationKernel, LaunchesNothingForEmptyInput) {
  EXPECT_EQ(activate(at::empty({0, 8}), ActivationFunction::kGelu).sizes(), at::IntArrayRef({0, 8}));
  EXPECT_EQ(activation_backward(at::empty({0, 8}), at::empty({0, 8}), ActivationFunction::kGelu).numel(), 0);
}

TEST_P(ActivationKernel, HandlesIndicesBeyond32Bits) {
  constexpr int64_t kCount = (int64_t{1} << 31) + 8;
  const at::Tensor x = reserve_tensor({kCount}, at::kBFloat16), gradient = reserve_tensor({kCount}, at::kBFloat16);
  const at::Tensor last = sample({8}, at::kBFloat16);
  x.narrow(0, kCount - 8, 8).copy_(last);
  gradient.narrow(0, kCount - 8, 8).copy_(last);
  settings().max_trailing_blocks = 1;
  constexpr auto kFunction = ActivationFunction::kGelu;
  EXPECT_TRUE(at::equal(activate(x, kFunction).narrow(0, kCount - 8, 8), activate(last, kFunction)));
  EXPECT_TRUE(at::equal(activation_backward(gradient, x, kFunction).narrow(0, kCount - 8, 8),
                        activation_backward(last, last, kFunction)));
}

INSTANTIATE_TEST_SUITE_P(Orders, ActivationKernel, kEveryOrder);

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
    for (const int64_t columns : {64, 60}) {  // whole and half packs
      const at::Tensor x = sample({2, 2 * columns}, dtype), gradient = sample({2, columns}, dtype);
      // Misaligned, so that it is read element by element.
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
  settings().max_trailing_blocks = 1;
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
