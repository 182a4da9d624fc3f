#include "vlmtrain/train/smoke_run.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "io/temporary_folder.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::train {

namespace {

class SmokeRunTest : public io::TemporaryFolderTest {
 protected:
  void SetUp() override {
    TemporaryFolderTest::SetUp();
    models::write_preset_config("smolvlm-tiny", folder());
  }
  SmokeRunResult run_smoke(engine::Precision precision) const {
    return run_smoke_training({.model = folder(), .precision = precision, .seconds = 0});
  }
};

TEST_F(SmokeRunTest, LossDecreases) {
  const SmokeRunResult actual = run_smoke(engine::Precision::kFp32);
  EXPECT_EQ(actual.steps, kMinSmokeRunSteps);
  EXPECT_LT(actual.last_loss, actual.first_loss);
  EXPECT_NEAR(actual.first_loss, std::log(640), 1) << "of a model at random: that of the vocabulary";
  EXPECT_GT(actual.steps_per_second, 0);
  EXPECT_GT(actual.gradients.size(), 40U);
}

TEST_F(SmokeRunTest, IsDeterministic) {
  const auto deviation = compare_smoke_runs(run_smoke(engine::Precision::kFp32), run_smoke(engine::Precision::kFp32));
  const auto bound = get_smoke_run_tolerance(engine::Precision::kFp32);
  EXPECT_LE(deviation.loss, bound.loss);
  EXPECT_LE(deviation.gradient, bound.gradient);
}

TEST_F(SmokeRunTest, HalfPrecisionIsWithinTolerance) {
  const SmokeRunResult expected = run_smoke(engine::Precision::kFp32);
  for (const auto precision : {engine::Precision::kBf16, engine::Precision::kFp16}) {
    const auto deviation = compare_smoke_runs(run_smoke(precision), expected);
    const auto bound = get_smoke_run_tolerance(precision);
    EXPECT_LE(deviation.loss, bound.loss) << engine::to_string(precision);
    EXPECT_LE(deviation.gradient, bound.gradient) << engine::to_string(precision) << " " << deviation.parameter;
    EXPECT_GT(deviation.gradient, 0);
    RecordProperty(engine::to_string(precision) + "_gradient", std::to_string(deviation.gradient));
    std::printf("  %s: loss %.1e of %.1e, gradient %.1e of %.1e\n", engine::to_string(precision).c_str(),
                deviation.loss, bound.loss, deviation.gradient, bound.gradient);
  }
}

TEST_F(SmokeRunTest, FaultsAreOutsideTolerance) {
  const SmokeRunResult expected = run_smoke(engine::Precision::kFp32);
  const double bound = get_smoke_run_tolerance(engine::Precision::kBf16).gradient;
  const std::string name = "model.text_model.layers.1.mlp.up_proj.weight";
  SmokeRunResult actual = expected;
  ASSERT_TRUE(actual.gradients.contains(name));
  actual.gradients[name] = expected.gradients.at(name) * 1.25;
  EXPECT_GT(compare_smoke_runs(actual, expected).gradient, bound);
  EXPECT_EQ(compare_smoke_runs(actual, expected).parameter, name);
  actual.gradients[name] = expected.gradients.at(name) * std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(compare_smoke_runs(actual, expected).gradient <= bound);
  actual.gradients.erase(name);
  EXPECT_FALSE(compare_smoke_runs(actual, expected).gradient <= bound);
  actual = expected;
  actual.first_loss *= 1.01;
  EXPECT_GT(compare_smoke_runs(actual, expected).loss, get_smoke_run_tolerance(engine::Precision::kBf16).loss);
}

}  // namespace

}  // namespace vlmtrain::train
