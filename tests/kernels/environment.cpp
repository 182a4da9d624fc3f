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

class EnvironmentOfKernels : public testing::Environment {
 public:
  void SetUp() override {
    if (!are_emulated()) return;
    const auto opened = open_kernels(at::kCPU);
    ASSERT_EQ(opened.problem, "");
    ASSERT_TRUE(opened.wrong.empty()) << opened.wrong.front();
  }
};

[[maybe_unused]] const testing::Environment* const kAdded = testing::AddGlobalTestEnvironment(new EnvironmentOfKernels);

TEST(OwnKernels, AreThereWhereTheyAreEmulatedAndNowhereElseOnTheCpu) {
  for (const auto kernel : all_kernels()) EXPECT_EQ(has(kernel, at::empty({1})), are_emulated()) << name_of(kernel);
}

}  // namespace
}  // namespace vlmtrain::kernels
