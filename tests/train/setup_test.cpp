#include "vlmtrain/train/setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/user_error.h"

namespace vlmtrain::train {
namespace {

using planner::get_error_message;

TEST(LearningRatesTest, FrozenPartsHaveNoLearningRate) {
  Config config;
  config.training.vision_learning_rate = 1e-5;
  config.training.projector_learning_rate = 1e-4;
  EXPECT_NO_THROW(check_learning_rates(config));
  config.model.freeze_projector = true;
  EXPECT_THAT(get_error_message([&] { check_learning_rates(config); }),
              testing::AllOf(testing::HasSubstr("training.projector_learning_rate"),
                             testing::HasSubstr("model.freeze_projector to false")));
  config.model.freeze_projector = false;
  config.model.freeze_vision_tower = true;
  EXPECT_THAT(get_error_message([&] { check_learning_rates(config); }),
              testing::HasSubstr("model.freeze_vision_tower"));
  config.training.vision_learning_rate = {};
  EXPECT_NO_THROW(check_learning_rates(config));
}

TEST(LoraSettingsTest, FollowTheConfiguration) {
  Config config;
  config.model.path = "model";
  EXPECT_FALSE(make_lora_settings(config));
  config.lora.rank = 4;
  config.model.freeze_projector = true;
  const auto settings = make_lora_settings(config);
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->rank, 4);
  EXPECT_THAT(settings->excluded_components, testing::ElementsAre(nn::Component::kProjector));
}

TEST(LoraSettingsTest, RejectConflicts) {
  using planner::get_error_message;
  using testing::HasSubstr;
  Config config;
  config.lora.alpha = 3;
  EXPECT_THAT(get_error_message([&] { make_lora_settings(config); }), HasSubstr("lora.rank is 0"));
  config.model.adapter = "adapter";
  EXPECT_THAT(get_error_message([&] { make_lora_settings(config); }), HasSubstr("has its own rank, alpha and targets"));
  config = {};
  config.lora.rank = 4;
  config.model.path = "model-\xff";
  EXPECT_THAT(get_error_message([&] { make_lora_settings(config); }), HasSubstr("not valid UTF-8"));
  config.model.path = "model";
  config.lora.target_modules.clear();
  EXPECT_THAT(get_error_message([&] { make_lora_settings(config); }), HasSubstr("lora.target_modules: empty"));
}

TEST(AdamWSettingsTest, OnlyFp16HasALossScale) {
  engine::TrainingOptions options;
  EXPECT_FALSE(make_adamw_settings(options).loss_scale);
  options.precision = engine::Precision::kFp16;
  EXPECT_TRUE(make_adamw_settings(options).loss_scale->dynamic);
  EXPECT_EQ(make_adamw_settings(options).loss_scale->initial, engine::LossScaleSettings{}.initial);
  options.loss_scale = 512;
  EXPECT_FALSE(make_adamw_settings(options).loss_scale->dynamic);
  EXPECT_EQ(make_adamw_settings(options).loss_scale->initial, 512);
}

}  // namespace
}  // namespace vlmtrain::train
