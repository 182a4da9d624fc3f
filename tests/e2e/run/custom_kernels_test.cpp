#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::HasSubstr;
using testing::Not;
using testing::Pointwise;

/// Whole runs with kernels that are emulated on the CPU.
class CustomKernelsTest : public CommandTest {
 protected:
  void TearDown() override {
    unsetenv("VLMTRAIN_EMULATED_KERNELS");
    CommandTest::TearDown();
  }

  struct Run {
    std::string err;
    std::vector<double> losses;
  };

  /// Uses the kernels of `library`; null: only ATen's.
  Run run_with_environment(const char* library, std::vector<std::string> overrides = {}) const {
    if (library != nullptr) setenv("VLMTRAIN_EMULATED_KERNELS", library, /*overwrite=*/1);
    std::filesystem::remove_all(folder() / "run");
    overrides.emplace_back("output.report=false");
    const Result result = train(overrides);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    Run run{.err = result.err, .losses = {}};
    for (const auto& step : step_lines("run/metrics.jsonl")) run.losses.push_back(step.at("loss").get<double>());
    return run;
  }
};

constexpr const char* kLeftOut = "a custom kernel is disabled";

TEST_F(CustomKernelsTest, LearnsTheSameAsAten) {
  const Run aten = run_with_environment(nullptr);
  const Run custom = run_with_environment(VLMTRAIN_EMULATED_KERNELS);
  EXPECT_THAT(custom.err, Not(HasSubstr(kLeftOut)));
  ASSERT_EQ(custom.losses.size(), 4U);
  EXPECT_THAT(custom.losses, Pointwise(DoubleNear(1e-4), aten.losses));
}

TEST_F(CustomKernelsTest, DisablesAWrongKernel) {
  const Run aten = run_with_environment(nullptr);
  const Run custom = run_with_environment(VLMTRAIN_WRONG_KERNELS);
  EXPECT_THAT(custom.err, AllOf(HasSubstr(kLeftOut), HasSubstr("gated_activation in Float: 1 of ")));
  EXPECT_THAT(custom.losses, Pointwise(DoubleNear(1e-4), aten.losses));
}

TEST_F(CustomKernelsTest, DisabledKernelsAreNotLoaded) {
  const Run aten = run_with_environment(nullptr);
  const Run custom = run_with_environment(VLMTRAIN_WRONG_KERNELS, {"training.kernels=aten"});
  EXPECT_EQ(custom.losses, aten.losses);
}

}  // namespace

}  // namespace vlmtrain::e2e
