#include "e2e/command.h"

namespace vlmtrain::e2e {
namespace {

using testing::HasSubstr;

/// The command on a virtual card, which its children get with their environment.
class VirtualGpuTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    setenv("VLMTRAIN_VGPU_CARD", "rtx4090", 1);
  }

  Result train_on_card(const std::vector<std::string>& overrides) const {
    std::vector<std::string> arguments{"--config", "train.yaml", "--device", "cuda"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    setenv("LD_PRELOAD", VLMTRAIN_VGPU_PRELOAD, 1);
    const Result result = run(arguments);
    unsetenv("LD_PRELOAD");
    return result;
  }
};

TEST_F(VirtualGpuTest, TrainsAndReportsDeviceMemory) {
  const Result result = train_on_card({"training.precision=bf16"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("in bf16 on cuda:0"));
  const auto steps = step_lines("run/metrics.jsonl");
  ASSERT_EQ(steps.size(), 4U);
  for (const auto& step : steps) {
    EXPECT_GT(step["allocated_peak_bytes"], 0);
    EXPECT_GE(step["reserved_peak_bytes"], step["allocated_peak_bytes"]);
  }
}

TEST_F(VirtualGpuTest, ACardThatIsTooSmallIsSaidAndWhatWouldHelp) {
  setenv("VLMTRAIN_VGPU_BYTES", "25165824", 1);
  const Result result = train_on_card({});
  unsetenv("VLMTRAIN_VGPU_BYTES");
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the device's memory is full"));
  EXPECT_THAT(result.err, HasSubstr("training.micro_batch_size"));
}

}  // namespace
}  // namespace vlmtrain::e2e
