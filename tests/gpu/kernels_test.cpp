#include "vlmtrain/kernels/kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "gpu/gpu.h"
#include "kernels/self_test.h"
#include "vlmtrain/kernels/activation.h"
#include "vlmtrain/kernels/cross_entropy.h"
#include "vlmtrain/kernels/norm.h"

namespace vlmtrain::gpu {
namespace {

/// VLMTRAIN_GPU_TESTS_DEVICE=cpu and VLMTRAIN_EMULATED_KERNELS test the emulated kernels.
class GpuKernels : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const auto status = kernels::open_kernels(device_);
    if (!status.unavailable_reason.empty()) GTEST_SKIP() << status.unavailable_reason;
    for (const std::string& failure : status.failure_messages) ADD_FAILURE() << failure;
  }
};

class GpuKernelSizes : public GpuKernels,
                       public testing::WithParamInterface<std::tuple<kernels::Kernel, at::ScalarType>> {};

kernels::KernelTestSizes get_test_sizes(kernels::Kernel kernel, bool is_emulated) {
  if (is_emulated)
    return {.rows = 40, .columns = {512, 259}, .super_blocks = 9, .parameters = 5000, .image_size = {56, 80}};
  // Several waves of blocks on 132 multiprocessors; random numbers on the CPU take most of the
  // time.
  kernels::KernelTestSizes sizes{
      .rows = 1411, .columns = {3584, 1155}, .super_blocks = 300, .parameters = 3'000'001, .image_size = {336, 448}};
  if (kernel == kernels::Kernel::kCrossEntropy) sizes = {.rows = 45, .columns = {151936, 32003}};
  if (kernel == kernels::Kernel::kDropout) sizes.rows = 200;
  return sizes;
}

TEST_P(GpuKernelSizes, MatchFloat64Reference) {
  const auto [kernel, dtype] = GetParam();
  if (dtype == at::kBFloat16 && !has_bf16()) GTEST_SKIP() << "the GPU has no bf16";
  const std::string name(kernels::to_string(kernel));
  for (const auto& [actual, expected] :
       kernels::run_kernel_test(kernel, device_, dtype, get_test_sizes(kernel, device_.is_cpu()))) {
    // Results are rounded once from nearly the same value, so only values near a midpoint differ.
    double bound = actual.scalar_type() == at::kFloat ? kFp32Bound : unit_roundoff(actual.scalar_type()) / 4;
    // Moments in bf16 are rounded stochastically.
    if (kernel == kernels::Kernel::kAdamW && actual.scalar_type() == at::kBFloat16)
      bound = unit_roundoff(at::kBFloat16);
    deviations_.expect_at_most(bound, parity::relative_difference(fetch_result(actual), expected.cpu()), name,
                               short_name(actual.scalar_type()));
  }
}

INSTANTIATE_TEST_SUITE_P(Of, GpuKernelSizes,
                         testing::Combine(testing::ValuesIn(kernels::list_kernels().begin(),
                                                            kernels::list_kernels().end()),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
                         [](const auto& instance) {
                           return std::string(kernels::to_string(std::get<0>(instance.param))) + "_" +
                                  short_name(std::get<1>(instance.param));
                         });

/// The last row of a tensor with indices beyond 32 bits has the same result as alone.
TEST_F(GpuKernels, HandleIndicesBeyond32Bits) {
  if (device_.is_cpu()) GTEST_SKIP() << "tests/kernels has this test for the CPU";
  if (memory::get_free_device_bytes(device_) < int64_t{60} << 30) GTEST_SKIP() << "needs 60 GiB of free GPU memory";
  constexpr int64_t kFeatures = 4096, kRows = (int64_t{1} << 32) / kFeatures + 3;
  const auto options = at::TensorOptions(device_).dtype(at::kHalf);
  at::manual_seed(1);
  const at::Tensor row = at::randn({1, kFeatures}).to(options), large = at::empty({kRows, kFeatures}, options);
  const auto get_last_row = [&](const at::Tensor& all) { return all.narrow(0, kRows - 1, 1); };
  get_last_row(large).copy_(row);
  const auto expect_equal = [&](const at::Tensor& actual, const at::Tensor& expected, const std::string& name) {
    EXPECT_EQ(parity::relative_difference(fetch_result(get_last_row(actual)), expected.cpu()), 0) << name;
  };
  expect_equal(kernels::gated_activation(large, kernels::GateActivation::kSilu),
               kernels::gated_activation(row, kernels::GateActivation::kSilu), "gate");
  expect_equal(kernels::activate(large, kernels::ActivationFunction::kGelu),
               kernels::activate(row, kernels::ActivationFunction::kGelu), "activation");
  const kernels::NormParams params{.weight = at::randn({kFeatures}).to(options), .eps = 1e-6};
  const kernels::NormResult norm_result = kernels::norm(large, params), expected_norm = kernels::norm(row, params);
  expect_equal(norm_result.value, expected_norm.value, "norm");
  expect_equal(kernels::norm_backward(large, large, norm_result.statistics, params),
               kernels::norm_backward(row, row, expected_norm.statistics, params), "norm, backwards");
  const at::Tensor labels = at::empty({kRows}, options.dtype(at::kLong)).fill_(7);
  const auto actual = kernels::cross_entropy(large, labels, 1, {}, /*compute_gradient=*/true);
  const auto expected = kernels::cross_entropy(row, labels.narrow(0, 0, 1), 1, {}, /*compute_gradient=*/true);
  expect_equal(actual.cross_entropy, expected.cross_entropy, "cross_entropy");
  expect_equal(large, row, "cross_entropy's gradient");
}

}  // namespace
}  // namespace vlmtrain::gpu
