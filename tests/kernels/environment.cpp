#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "vlmtrain/kernels/kernels.h"

// With VLMTRAIN_EMULATED_KERNELS a whole program of tests computes with our own kernels, emulated on the CPU: this file
// is part of several.
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
    ASSERT_EQ(status.problem, "");
    ASSERT_TRUE(status.failed.empty()) << status.failed.front();
  }
};

[[maybe_unused]] const testing::Environment* const kEnvironment =
    testing::AddGlobalTestEnvironment(new KernelEnvironment);

TEST(CustomKernels, AreAvailableOnCpuOnlyWhenEmulated) {
  for (const auto kernel : all_kernels()) EXPECT_EQ(has(kernel, at::empty({1})), are_emulated()) << to_string(kernel);
}

}  // namespace
}  // namespace vlmtrain::kernels
