#include "vlmtrain/kernels/activation.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"
#include "kernels/reference.h"

namespace vlmtrain::kernels {
namespace {

constexpr ActivationFunction kFunctions[] = {ActivationFunction::kGelu, ActivationFunction::kGeluTanh,
                                             ActivationFunction::kQuickGelu, ActivationFunction::kRelu};

class ActivationKernel : public EmulatedKernels {
 protected:
  static at::Tensor draw(at::IntArrayRef sizes, at::ScalarType dtype) {
    at::manual_seed(1);
    return at::randn(sizes).mul_(2).to(dtype);
  }
};

TEST_P(ActivationKernel, ComputesWhatAtenDoesForwardsAndBackwards) {
  for (const auto function : kFunctions) {
    for (const auto dtype : kTypes) {
      for (const int64_t columns : kOddColumns) {
        const at::Tensor x = draw({3, columns}, dtype), gradient = draw({3, columns}, dtype);
        expect_close(activate(x, function), reference::activate(x, function));
        expect_close(activation_backward(gradient, x, function), reference::activation_backward(gradient, x, function));
      }
    }
  }
}

TEST_P(ActivationKernel, PacksAndSingleElementsGiveTheSame) {
  for (const auto dtype : kTypes) {
    const at::Tensor x = draw({2, 128}, dtype);
    // Begins within a pack, so that it is read element by element.
    const at::Tensor apart = at::empty({2 * 128 + 1}, x.options()).narrow(0, 1, 2 * 128).view({2, 128}).copy_(x);
    EXPECT_TRUE(
        at::equal(activate(x, ActivationFunction::kQuickGelu), activate(apart, ActivationFunction::kQuickGelu)));
  }
}

TEST_P(ActivationKernel, ItsGradientIsItsSlope) {
  constexpr double kStep = 1e-2;
  for (const auto function : kFunctions) {
    const at::Tensor x = draw({2, 24}, at::kFloat), gradient = at::randn({2, 24});
    const at::Tensor found = activation_backward(gradient, x, function);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const auto moved = [&](double by) {
        at::Tensor other = x.clone();
        other.view(-1)[i] += by;
        return (activate(other, function) * gradient).sum().item<double>();
      };
      EXPECT_NEAR(found.view(-1)[i].item<double>(), (moved(kStep) - moved(-kStep)) / (2 * kStep), 2e-3);
    }
  }
}

TEST_P(ActivationKernel, NoRowsAreNoLaunch) {
  EXPECT_EQ(activate(at::empty({0, 8}), ActivationFunction::kGelu).sizes(), at::IntArrayRef({0, 8}));
  EXPECT_EQ(activation_backward(at::empty({0, 8}), at::empty({0, 8}), ActivationFunction::kGelu).numel(), 0);
}

TEST_P(ActivationKernel, CountsBeyondThirtyTwoBits) {
  constexpr int64_t kCount = (int64_t{1} << 31) + 8;
  const at::Tensor x = without_memory({kCount}, at::kBFloat16), gradient = without_memory({kCount}, at::kBFloat16);
  const at::Tensor last = draw({8}, at::kBFloat16);
  x.narrow(0, kCount - 8, 8).copy_(last);
  gradient.narrow(0, kCount - 8, 8).copy_(last);
  settings().last_blocks = 1;
  constexpr auto kFunction = ActivationFunction::kGelu;
  EXPECT_TRUE(at::equal(activate(x, kFunction).narrow(0, kCount - 8, 8), activate(last, kFunction)));
  EXPECT_TRUE(at::equal(activation_backward(gradient, x, kFunction).narrow(0, kCount - 8, 8),
                        activation_backward(last, last, kFunction)));
}

INSTANTIATE_TEST_SUITE_P(Orders, ActivationKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels
