#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/environment.h"

namespace vlmtrain::parity {
namespace {

[[maybe_unused]] const testing::Environment* const kKernels =
    testing::AddGlobalTestEnvironment(new kernels::EnvironmentOfKernels);

TEST(OwnKernels, AreThereWhereTheyAreEmulatedAndNowhereElseOnTheCpu) {
  const bool emulated = std::getenv("VLMTRAIN_EMULATED_KERNELS") != nullptr;
  for (const auto kernel : kernels::all_kernels()) {
    EXPECT_EQ(kernels::has(kernel, at::empty({1})), emulated) << kernels::name_of(kernel);
  }
}

}  // namespace
}  // namespace vlmtrain::parity
