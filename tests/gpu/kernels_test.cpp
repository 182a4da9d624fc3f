#include "vlmtrain/kernels/kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "gpu/card.h"
#include "kernels/trial.h"
#include "vlmtrain/kernels/activation.h"
#include "vlmtrain/kernels/cross_entropy.h"
#include "vlmtrain/kernels/gate.h"
#include "vlmtrain/kernels/norm.h"

namespace vlmtrain::gpu {
namespace {

/// With VLMTRAIN_GPU_TESTS_DEVICE=cpu and VLMTRAIN_EMULATED_KERNELS the emulated ones.
class GpuKernels : public CardTest {
 protected:
  void SetUp() override {
    CardTest::SetUp();
    if (IsSkipped()) return;
    const auto opened = kernels::open_kernels(device_);
    if (!opened.problem.empty()) GTEST_SKIP() << opened.problem;
    for (const std::string& wrong : opened.wrong) ADD_FAILURE() << wrong;
  }
};

class GpuKernelsOfSizes : public GpuKernels,
                          public testing::WithParamInterface<std::tuple<kernels::Kernel, at::ScalarType>> {};

kernels::TrialSizes sizes_of(kernels::Kernel kernel, bool is_emulated) {
  if (is_emulated)
    return {.rows = 40, .columns = {512, 259}, .super_blocks = 9, .parameters = 5000, .picture = {56, 80}};
  // Several waves of blocks on 132 multiprocessors; draws on the host are what takes long.
  kernels::TrialSizes sizes{
      .rows = 1411, .columns = {3584, 1155}, .super_blocks = 300, .parameters = 3'000'001, .picture = {336, 448}};
  if (kernel == kernels::Kernel::kCrossEntropy) sizes = {.rows = 45, .columns = {151936, 32003}};
  if (kernel == kernels::Kernel::kDropout) sizes.rows = 200;
  return sizes;
}

TEST_P(GpuKernelsOfSizes, ComputeWhatAtenDoesInFloat64) {
  const auto [kernel, dtype] = GetParam();
  if (dtype == at::kBFloat16 && !has_bf16()) GTEST_SKIP() << "the card has no bf16";
  const std::string name(kernels::name_of(kernel));
  for (const auto& [made, wanted] : kernels::try_kernel(kernel, device_, dtype, sizes_of(kernel, device_.is_cpu()))) {
    // One rounding of the same value: only what lies almost in the middle of two falls otherwise.
    double bound = made.scalar_type() == at::kFloat ? kFp32Bound : unit_of(made.scalar_type()) / 4;
    // Moments in bf16 are rounded at random.
    if (kernel == kernels::Kernel::kAdamW && made.scalar_type() == at::kBFloat16) bound = unit_of(at::kBFloat16);
    deviations_.expect_at_most(bound, parity::relative_difference(from_card(made), wanted.cpu()), name,
                               short_name(made.scalar_type()));
  }
}

INSTANTIATE_TEST_SUITE_P(Of, GpuKernelsOfSizes,
                         testing::Combine(testing::ValuesIn(kernels::all_kernels().begin(),
                                                            kernels::all_kernels().end()),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
                         [](const auto& instance) {
                           return std::string(kernels::name_of(std::get<0>(instance.param))) + "_" +
                                  short_name(std::get<1>(instance.param));
                         });

/// A last row whose elements are numbered beyond 32 bits is what it is alone.
TEST_F(GpuKernels, CountBeyondThirtyTwoBits) {
  if (device_.is_cpu()) GTEST_SKIP() << "tests/kernels has it, without the memory";
  if (memory::free_bytes(device_) < int64_t{60} << 30) GTEST_SKIP() << "it takes up to 60 GiB";
  constexpr int64_t kFeatures = 4096, kRows = (int64_t{1} << 32) / kFeatures + 3;
  const auto options = at::TensorOptions(device_).dtype(at::kHalf);
  at::manual_seed(1);
  const at::Tensor row = at::randn({1, kFeatures}).to(options), large = at::empty({kRows, kFeatures}, options);
  const auto last_of = [&](const at::Tensor& all) { return all.narrow(0, kRows - 1, 1); };
  last_of(large).copy_(row);
  const auto expect_alike = [&](const at::Tensor& found, const at::Tensor& wanted, const std::string& what) {
    EXPECT_EQ(parity::relative_difference(from_card(last_of(found)), wanted.cpu()), 0) << what;
  };
  expect_alike(kernels::gate(large, kernels::GateActivation::kSilu), kernels::gate(row, kernels::GateActivation::kSilu),
               "gate");
  expect_alike(kernels::activate(large, kernels::ActivationFunction::kGelu),
               kernels::activate(row, kernels::ActivationFunction::kGelu), "activation");
  const kernels::Norm by{.weight = at::randn({kFeatures}).to(options), .eps = 1e-6};
  const kernels::Normed normed = kernels::norm(large, by), alone = kernels::norm(row, by);
  expect_alike(normed.value, alone.value, "norm");
  expect_alike(kernels::norm_backward(large, large, normed.statistics, by),
               kernels::norm_backward(row, row, alone.statistics, by), "norm, backwards");
  const at::Tensor labels = at::empty({kRows}, options.dtype(at::kLong)).fill_(7);
  const auto made = kernels::cross_entropy(large, labels, 1, {}, /*gradient_wanted=*/true);
  const auto wanted = kernels::cross_entropy(row, labels.narrow(0, 0, 1), 1, {}, /*gradient_wanted=*/true);
  expect_alike(made.cross_entropy, wanted.cross_entropy, "cross_entropy");
  expect_alike(large, row, "cross_entropy's gradient");
}

}  // namespace
}  // namespace vlmtrain::gpu
