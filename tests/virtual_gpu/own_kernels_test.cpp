#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "vlmtrain/kernels/cross_entropy.h"
#include "vlmtrain/kernels/gate.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::kernels {
namespace {

/// All tests of this program run with our own kernels, where they are built, or with VLMTRAIN_TESTS_KERNELS=aten
/// without.
class EnvironmentOnACard : public testing::Environment {
 public:
  void SetUp() override {
    if (vgpu::attached() == nullptr) return;
    const char* const asked = std::getenv("VLMTRAIN_TESTS_KERNELS");
    const bool by_aten = asked != nullptr && std::string_view(asked) == "aten";
    const auto all = all_kernels();
    try {
      open_kernels(memory::open_device("cuda"), by_aten ? KernelSet(all.begin(), all.end()) : KernelSet());
    } catch (const std::exception&) {
      // A card without code in LibTorch, which tests of their own are about.
    }
  }
};

[[maybe_unused]] const testing::Environment* const kAdded = testing::AddGlobalTestEnvironment(new EnvironmentOnACard);

vgpu::Counters counters() {
  vgpu::Counters now;
  vgpu::attached()->read(&now);
  return now;
}

TEST(OwnKernelsOnACard, AreOneLaunchEachThatTheCardTakes) {
  const auto options = at::TensorOptions(at::Device(at::kCUDA, 0));
  const at::Tensor x = at::empty({5, 64}, options.dtype(at::kHalf));
  if (!has(Kernel::kGate, x)) GTEST_SKIP() << "own kernels are not built, or left out";
  const auto before = counters();
  gate(x, GateActivation::kSilu);
  gate_backward(at::empty({5, 32}, x.options()), x, GateActivation::kGeluTanh);
  cross_entropy(x, at::empty({5}, options.dtype(at::kLong)), 1, {}, /*gradient_wanted=*/true);
  const auto after = counters();
  EXPECT_EQ(after.launches - before.launches, 3U);
  EXPECT_EQ(after.rejected_launches, before.rejected_launches);
}

}  // namespace
}  // namespace vlmtrain::kernels
