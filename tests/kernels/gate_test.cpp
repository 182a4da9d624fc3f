#include "vlmtrain/kernels/gate.h"

#include <gtest/gtest.h>

#include "kernels/emulated.h"
#include "kernels/reference.h"

namespace vlmtrain::kernels {
namespace {

constexpr GateActivation kActivations[] = {GateActivation::kSilu, GateActivation::kGeluTanh};

class GateKernel : public EmulatedKernels {
 protected:
  static at::Tensor draw(at::IntArrayRef sizes, at::ScalarType dtype) {
    at::manual_seed(1);
    return at::randn(sizes).mul_(2).to(dtype);
  }
};

TEST_P(GateKernel, ComputesWhatAtenDoesForwardsAndBackwards) {
  for (const auto activation : kActivations) {
    for (const auto dtype : kTypes) {
      for (const int64_t columns : kOddColumns) {
        const at::Tensor x = draw({3, 2 * columns}, dtype), gradient = draw({3, columns}, dtype);
        expect_close(gate(x, activation), reference::gate(x, activation));
        expect_close(gate_backward(gradient, x, activation), reference::gate_backward(gradient, x, activation));
      }
    }
  }
}

TEST_P(GateKernel, PacksAndSingleElementsGiveTheSame) {
  for (const auto dtype : kTypes) {
    for (const int64_t columns : {64, 60}) {  // whole packs, and half ones
      const at::Tensor x = draw({2, 2 * columns}, dtype), gradient = draw({2, columns}, dtype);
      // Begins within a pack, so that it is read element by element.
      const at::Tensor apart = at::empty({x.numel() + 1}, x.options()).narrow(0, 1, x.numel()).view_as(x).copy_(x);
      for (const auto activation : kActivations) {
        EXPECT_TRUE(at::equal(gate(x, activation), gate(apart, activation)));
        EXPECT_TRUE(at::equal(gate_backward(gradient, x, activation), gate_backward(gradient, apart, activation)));
      }
    }
  }
}

TEST_P(GateKernel, ItsGradientIsItsSlope) {
  constexpr double kStep = 1e-2;
  for (const auto activation : kActivations) {
    const at::Tensor x = draw({2, 24}, at::kFloat), gradient = draw({2, 12}, at::kFloat);
    const at::Tensor found = gate_backward(gradient, x, activation);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const auto moved = [&](double by) {
        at::Tensor other = x.clone();
        other.view(-1)[i] += by;
        return (gate(other, activation) * gradient).sum().item<double>();
      };
      EXPECT_NEAR(found.view(-1)[i].item<double>(), (moved(kStep) - moved(-kStep)) / (2 * kStep), 2e-3);
    }
  }
}

TEST_P(GateKernel, NoRowsAreNoLaunch) {
  EXPECT_EQ(gate(at::empty({0, 8}), GateActivation::kSilu).sizes(), at::IntArrayRef({0, 4}));
  EXPECT_EQ(gate_backward(at::empty({0, 4}), at::empty({0, 8}), GateActivation::kSilu).numel(), 0);
}

TEST_P(GateKernel, CountsBeyondThirtyTwoBits) {
  constexpr int64_t kFeatures = 2048, kRows = (int64_t{1} << 31) / (2 * kFeatures) + 2;
  const at::Tensor x = without_memory({kRows, 2 * kFeatures}, at::kBFloat16);
  const at::Tensor row = draw({1, 2 * kFeatures}, at::kBFloat16), gradient = draw({1, kFeatures}, at::kBFloat16);
  x.narrow(0, kRows - 1, 1).copy_(row);
  settings().last_blocks = 1;
  const at::Tensor value = gate(x, GateActivation::kSilu);
  EXPECT_TRUE(at::equal(value.narrow(0, kRows - 1, 1), gate(row, GateActivation::kSilu)));
  const at::Tensor gradients = without_memory({kRows, kFeatures}, at::kBFloat16);
  gradients.narrow(0, kRows - 1, 1).copy_(gradient);
  EXPECT_TRUE(at::equal(gate_backward(gradients, x, GateActivation::kSilu).narrow(0, kRows - 1, 1),
                        gate_backward(gradient, row, GateActivation::kSilu)));
}

INSTANTIATE_TEST_SUITE_P(Orders, GateKernel, kEveryOrder);

}  // namespace
}  // namespace vlmtrain::kernels
