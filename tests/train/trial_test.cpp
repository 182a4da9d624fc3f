#include "vlmtrain/train/trial.h"

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

class TrialTest : public io::TemporaryFolderTest {
 protected:
  void SetUp() override {
    TemporaryFolderTest::SetUp();
    models::write_preset_config("smolvlm-tiny", folder());
  }
  Trial trial(engine::Precision precision) const {
    return try_training({.model = folder(), .precision = precision, .seconds = 0});
  }
};

TEST_F(TrialTest, LearnsItsBatch) {
  const Trial found = trial(engine::Precision::kFp32);
  EXPECT_EQ(found.steps, kFewestSteps);
  EXPECT_LT(found.last_loss, found.first_loss);
  EXPECT_NEAR(found.first_loss, std::log(640), 1) << "of a model at random: that of the vocabulary";
  EXPECT_GT(found.steps_per_second, 0);
  EXPECT_GT(found.gradients.size(), 40U);
}

TEST_F(TrialTest, IsTheSameEachTime) {
  const auto apart = difference(trial(engine::Precision::kFp32), trial(engine::Precision::kFp32));
  const auto bound = tolerance_of(engine::Precision::kFp32);
  EXPECT_LE(apart.loss, bound.loss);
  EXPECT_LE(apart.gradient, bound.gradient);
}

TEST_F(TrialTest, In16BitsIsWithinWhatRoundingExplains) {
  const Trial wanted = trial(engine::Precision::kFp32);
  for (const auto precision : {engine::Precision::kBf16, engine::Precision::kFp16}) {
    const auto apart = difference(trial(precision), wanted);
    const auto bound = tolerance_of(precision);
    EXPECT_LE(apart.loss, bound.loss) << engine::name_of(precision);
    EXPECT_LE(apart.gradient, bound.gradient) << engine::name_of(precision) << " " << apart.parameter;
    EXPECT_GT(apart.gradient, 0);
    RecordProperty(engine::name_of(precision) + "_gradient", std::to_string(apart.gradient));
    std::printf("  %s: loss %.1e of %.1e, gradient %.1e of %.1e\n", engine::name_of(precision).c_str(), apart.loss,
                bound.loss, apart.gradient, bound.gradient);
  }
}

TEST_F(TrialTest, AFaultIsFarOutsideOfIt) {
  const Trial wanted = trial(engine::Precision::kFp32);
  const double bound = tolerance_of(engine::Precision::kBf16).gradient;
  const std::string name = "model.text_model.layers.1.mlp.up_proj.weight";
  Trial found = wanted;
  ASSERT_TRUE(found.gradients.contains(name));
  found.gradients[name] = wanted.gradients.at(name) * 1.25;
  EXPECT_GT(difference(found, wanted).gradient, bound);
  EXPECT_EQ(difference(found, wanted).parameter, name);
  found.gradients[name] = wanted.gradients.at(name) * std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(difference(found, wanted).gradient <= bound);
  found.gradients.erase(name);
  EXPECT_FALSE(difference(found, wanted).gradient <= bound);
  found = wanted;
  found.first_loss *= 1.01;
  EXPECT_GT(difference(found, wanted).loss, tolerance_of(engine::Precision::kBf16).loss);
}

}  // namespace
}  // namespace vlmtrain::train
