#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "vlmtrain/kernels/kernels.h"

// If VLMTRAIN_EMULATED_KERNELS is set, a test program computes with custom kernels, emulated on the
// CPU. Several programs include this file.
namespace vlmtrain::kernels {
namespace {

bool are_emulated() {
  return std::getenv("VLMTRAIN_EMULATED_KERNELS") != nullptr;
}

class KernelEnvironment : public testing::Environment {
 public:
  void SetUp() override {
    if (!are_emulated()) return;
    const auto status = open_kernels(at::kCPU);
    ASSERT_EQ(status.unavailable_reason, "");
    ASSERT_TRUE(status.failure_messages.empty()) << status.failure_messages.front();
  }
};

[[maybe_unused]] const testing::Environment* const kEnvironment =
    testing::AddGlobalTestEnvironment(new KernelEnvironment);

TEST(CustomKernels, AreAvailableOnCpuOnlyWhenEmulated) {
  for (const auto kernel : list_kernels())
    EXPECT_EQ(is_available(kernel, at::empty({1})), are_emulated()) << to_string(kernel);
}

}  // namespace
}  // namespace vlmtrain::kernels
