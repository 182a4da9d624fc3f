#include "vlmtrain/train/components.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/captured_log.h"
#include "planner/user_error.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/train/checks.h"

namespace vlmtrain::train {

namespace {

using planner::get_usage_error;

TEST(LearningRatesTest, FrozenPartsHaveNoLearningRate) {
  Config config;
  config.training.vision_learning_rate = 1e-5;
  config.training.projector_learning_rate = 1e-4;
  EXPECT_NO_THROW(check_learning_rates(config));
  config.model.freeze_projector = true;
  EXPECT_THAT(get_usage_error([&] { check_learning_rates(config); }),
              testing::AllOf(testing::HasSubstr("training.projector_learning_rate"),
                             testing::HasSubstr("model.freeze_projector to false")));
  config.model.freeze_projector = false;
  config.model.freeze_vision_tower = true;
  EXPECT_THAT(get_usage_error([&] { check_learning_rates(config); }), testing::HasSubstr("model.freeze_vision_tower"));
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
  using planner::get_usage_error;
  using testing::HasSubstr;
  Config config;
  config.lora.alpha = 3;
  EXPECT_THAT(get_usage_error([&] { make_lora_settings(config); }), HasSubstr("lora.rank is 0"));
  config.model.adapter = "adapter";
  EXPECT_THAT(get_usage_error([&] { make_lora_settings(config); }), HasSubstr("has its own rank, alpha and targets"));
  config = {};
  config.lora.rank = 4;
  config.model.path = "model-\xff";
  EXPECT_THAT(get_usage_error([&] { make_lora_settings(config); }), HasSubstr("not valid UTF-8"));
  config.model.path = "model";
  config.lora.target_modules.clear();
  EXPECT_THAT(get_usage_error([&] { make_lora_settings(config); }), HasSubstr("lora.target_modules: is empty"));
}

TEST(OptimizerSettingsTest, OnlyFp16HasALossScale) {
  Config config;
  EXPECT_FALSE(make_optimizer_settings(config).loss_scale);
  config.training.precision = engine::Precision::kFp16;
  EXPECT_TRUE(make_optimizer_settings(config).loss_scale->dynamic);
  EXPECT_EQ(make_optimizer_settings(config).loss_scale->init_scale, engine::LossScaleSettings{}.init_scale);
  config.training.loss_scale = 512;
  EXPECT_FALSE(make_optimizer_settings(config).loss_scale->dynamic);
  EXPECT_EQ(make_optimizer_settings(config).loss_scale->init_scale, 512);
}

using testing::AllOf;
using testing::HasSubstr;

nn::Parameter make_parameter(const std::string& name) {
  nn::Parameter parameter{};
  parameter.name = name;
  parameter.component = nn::Component::kProjector;
  return parameter;
}

std::string capture_log(const models::LoadResult& loaded_weights, bool with_lora = false) {
  const CapturedLog log;
  check_newly_initialized_weights(loaded_weights, with_lora, "base");
  return log.text();
}

TEST(NewWeightsTest, LogsWeightsThatTheCheckpointLacks) {
  EXPECT_EQ(capture_log({}), "");
  EXPECT_THAT(capture_log({.initialized_parameters = {make_parameter("connector.weight")},
                           .resized_parameters = {},
                           .skipped_tensor_names = {}}),
              AllOf(HasSubstr("base lacks 1 of the weights"), HasSubstr("connector.weight")));
  EXPECT_THAT(capture_log({.initialized_parameters = {},
                           .resized_parameters = {make_parameter("lm_head.weight")},
                           .skipped_tensor_names = {}}),
              AllOf(HasSubstr("a different number of rows in 1"), HasSubstr("lm_head.weight")));
  EXPECT_THAT(
      capture_log({.initialized_parameters = {}, .resized_parameters = {}, .skipped_tensor_names = {"old.weight"}}),
      AllOf(HasSubstr("1 unexpected tensors"), HasSubstr("old.weight")));
}

TEST(NewWeightsTest, WithLoraOnlySavedModulesMayBeNew) {
  models::LoadResult loaded_weights{.initialized_parameters = {make_parameter("connector.weight")},
                                    .resized_parameters = {},
                                    .skipped_tensor_names = {}};
  EXPECT_THAT(
      planner::get_usage_error([&] { check_newly_initialized_weights(loaded_weights, /*with_lora=*/true, "base"); }),
      AllOf(HasSubstr("connector.weight"), HasSubstr("lora.modules_to_save")));
  loaded_weights.initialized_parameters.front().is_in_modules_to_save = true;
  EXPECT_THAT(capture_log(loaded_weights, /*with_lora=*/true), HasSubstr("base lacks 1 of the weights"));
}

}  // namespace

}  // namespace vlmtrain::train
