#include "vlmtrain/train/setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "planner/user_error.h"

namespace vlmtrain::train {
namespace {

using planner::message_of;

/// All keys of the configuration, in the order of their documentation.
std::vector<std::string> all_keys() {
  Config config;
  std::istringstream lines(declare(config).to_markdown());
  std::vector<std::string> keys;
  constexpr std::string_view kRow = "| `";
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kRow)) keys.push_back(line.substr(kRow.size(), line.find('`', kRow.size()) - kRow.size()));
  }
  return keys;
}

/// A key that is new has to be put here or into the fingerprint.
TEST(LearningRatesTest, APartThatStaysAsItIsHasNone) {
  Config config;
  config.training.vision_learning_rate = 1e-5;
  config.training.projector_learning_rate = 1e-4;
  EXPECT_NO_THROW(check_learning_rates(config));
  config.model.freeze_projector = true;
  EXPECT_THAT(message_of([&] { check_learning_rates(config); }),
              testing::AllOf(testing::HasSubstr("training.projector_learning_rate"),
                             testing::HasSubstr("model.freeze_projector to false")));
  config.model.freeze_projector = false;
  config.model.freeze_vision_tower = true;
  EXPECT_THAT(message_of([&] { check_learning_rates(config); }), testing::HasSubstr("model.freeze_vision_tower"));
  config.training.vision_learning_rate = {};
  EXPECT_NO_THROW(check_learning_rates(config));
}

TEST(RunFingerprintTest, LacksOnlyWhatChangesNoNumberOrMayBeChangedOnTheWay) {
  const std::set<std::string> free{
      // What the planner chooses, or a person in its place: loss and gradients stay the same but for rounding.
      "training.micro_batch_size",
      // The number of steps stands for them.
      "training.max_steps", "training.epochs",
      // What an error's message tells to change before going on; the samples that are out stay out.
      "data.max_length", "data.max_images_per_sample", "data.image_max_pixels", "data.video_fps",
      "data.video_max_frames", "data.on_bad_sample", "data.image_root",
      // What is looked at beside the training, and how fast.
      "data.eval", "data.packing", "data.check_at_start", "data.num_workers", "training.resume"};
  Config config;
  const auto fingerprint = run_fingerprint(config, 100);
  const auto keys = all_keys();
  ASSERT_GT(keys.size(), 60U);
  for (const auto& key : keys) {
    if (key.starts_with("memory.") || key.starts_with("output.")) continue;
    EXPECT_NE(fingerprint.contains(key), free.contains(key)) << key;
  }
}

TEST(RunFingerprintTest, HasTheNumbersOfSamplesAndSteps) {
  Config config;
  config.training.global_batch_size = 10;
  const auto with = [&](int64_t samples) { return run_fingerprint(config, samples); };
  EXPECT_EQ(with(100), with(100));
  EXPECT_NE(with(100), with(99)) << "as many steps of another data set";
  const auto before = with(100);
  config.training.epochs = 2;
  EXPECT_NE(with(100), before);
}

TEST(LoraSettingsTest, AreThoseOfTheConfiguration) {
  Config config;
  config.model.path = "model";
  EXPECT_FALSE(lora_settings(config));
  config.lora.rank = 4;
  config.model.freeze_projector = true;
  const auto settings = lora_settings(config);
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->rank, 4);
  EXPECT_THAT(settings->left_out, testing::ElementsAre(nn::Component::kProjector));
}

TEST(LoraSettingsTest, WhatCannotBeTogetherIsRefused) {
  using planner::message_of;
  using testing::HasSubstr;
  Config config;
  config.lora.alpha = 3;
  EXPECT_THAT(message_of([&] { lora_settings(config); }), HasSubstr("lora.rank is 0"));
  config.model.adapter = "adapter";
  EXPECT_THAT(message_of([&] { lora_settings(config); }), HasSubstr("has its own rank, alpha and targets"));
  config = {};
  config.lora.rank = 4;
  config.model.path = "model-\xff";
  EXPECT_THAT(message_of([&] { lora_settings(config); }), HasSubstr("not valid UTF-8"));
  config.model.path = "model";
  config.lora.target_modules.clear();
  EXPECT_THAT(message_of([&] { lora_settings(config); }), HasSubstr("lora.target_modules: empty"));
}

TEST(AdamWSettingsTest, OnlyHalfPrecisionHasALossScale) {
  engine::TrainingOptions options;
  EXPECT_FALSE(adamw_settings(options).loss_scale);
  options.precision = engine::Precision::kFp16;
  EXPECT_TRUE(adamw_settings(options).loss_scale->dynamic);
  EXPECT_EQ(adamw_settings(options).loss_scale->initial, engine::LossScaleSettings{}.initial);
  options.loss_scale = 512;
  EXPECT_FALSE(adamw_settings(options).loss_scale->dynamic);
  EXPECT_EQ(adamw_settings(options).loss_scale->initial, 512);
}

}  // namespace
}  // namespace vlmtrain::train
