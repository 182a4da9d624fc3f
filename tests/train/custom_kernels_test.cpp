#include "vlmtrain/train/custom_kernels.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

namespace {

using kernels::Kernel;
using kernels::KernelSet;

class DisabledKernelsTest : public testing::Test {
 protected:
  void TearDown() override { unsetenv("VLMTRAIN_WITHOUT_KERNELS"); }

  static KernelSet list_disabled_kernels(const char* names,
                                         kernels::KernelBackend choice = kernels::KernelBackend::kCustom) {
    setenv("VLMTRAIN_WITHOUT_KERNELS", names, /*overwrite=*/1);
    engine::TrainingOptions options;
    options.kernels = choice;
    return find_disabled_kernels(options);
  }
};

TEST_F(DisabledKernelsTest, AreEmptyByDefault) {
  EXPECT_EQ(find_disabled_kernels({}), KernelSet{});
  EXPECT_EQ(list_disabled_kernels(""), KernelSet{});
}

TEST_F(DisabledKernelsTest, AreReadFromTheEnvironment) {
  EXPECT_EQ(list_disabled_kernels("adamw"), KernelSet{Kernel::kAdamW});
  EXPECT_EQ(list_disabled_kernels("qk_norm_rope,gated_activation"),
            (KernelSet{Kernel::kQkNormRope, Kernel::kGatedActivation}));
  EXPECT_EQ(list_disabled_kernels(" norm_rotate, gate ,"), (KernelSet{Kernel::kQkNormRope, Kernel::kGatedActivation}));
}

TEST_F(DisabledKernelsTest, AreAllWithAten) {
  const auto all = kernels::list_kernels();
  EXPECT_EQ(list_disabled_kernels("gate", kernels::KernelBackend::kAten), KernelSet(all.begin(), all.end()));
}

TEST_F(DisabledKernelsTest, RejectsUnknownNames) {
  try {
    list_disabled_kernels("gate,softmax");
    FAIL() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("'softmax'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("cross_entropy"), std::string::npos) << error.what();
  }
}

}  // namespace

}  // namespace vlmtrain::train
