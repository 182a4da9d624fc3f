#include "vlmtrain/train/own_kernels.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {
namespace {

using kernels::Kernel;
using kernels::KernelSet;

class LeftOutKernelsTest : public testing::Test {
 protected:
  void TearDown() override { unsetenv("VLMTRAIN_WITHOUT_KERNELS"); }

  static KernelSet left_out_without(const char* names, kernels::KernelChoice choice = kernels::KernelChoice::kOwn) {
    setenv("VLMTRAIN_WITHOUT_KERNELS", names, /*overwrite=*/1);
    engine::TrainingOptions options;
    options.kernels = choice;
    return left_out_kernels(options);
  }
};

TEST_F(LeftOutKernelsTest, AreNoneUnlessSomeoneSaysSo) {
  EXPECT_EQ(left_out_kernels({}), KernelSet{});
  EXPECT_EQ(left_out_without(""), KernelSet{});
}

TEST_F(LeftOutKernelsTest, AreThoseThatTheEnvironmentNames) {
  EXPECT_EQ(left_out_without("adamw"), KernelSet{Kernel::kAdamW});
  EXPECT_EQ(left_out_without("norm_rotate,gate"), (KernelSet{Kernel::kNormRotate, Kernel::kGate}));
  EXPECT_EQ(left_out_without(" norm_rotate, gate ,"), (KernelSet{Kernel::kNormRotate, Kernel::kGate}));
}

TEST_F(LeftOutKernelsTest, AreAllWithAten) {
  const auto all = kernels::all_kernels();
  EXPECT_EQ(left_out_without("gate", kernels::KernelChoice::kAten), KernelSet(all.begin(), all.end()));
}

TEST_F(LeftOutKernelsTest, OfAnotherNameAreRefused) {
  try {
    left_out_without("gate,softmax");
    FAIL() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("'softmax'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("cross_entropy"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace vlmtrain::train
