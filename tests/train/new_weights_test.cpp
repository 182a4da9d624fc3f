#include "train/new_weights.h"

#include <gmock/gmock.h>

#include "base/captured_log.h"
#include "planner/user_error.h"

namespace vlmtrain::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

nn::Parameter parameter(const std::string& name) {
  nn::Parameter parameter{};
  parameter.name = name;
  parameter.component = nn::Component::kProjector;
  return parameter;
}

std::string said_of(const models::LoadedWeights& loaded, bool with_lora = false) {
  const CapturedLog log;
  check_new_weights(loaded, with_lora, "base");
  return log.text();
}

TEST(NewWeightsTest, WhatDoesNotComeFromTheCheckpointIsSaid) {
  EXPECT_EQ(said_of({}), "");
  EXPECT_THAT(said_of({.drawn = {parameter("connector.weight")}, .resized = {}, .left_out = {}}),
              AllOf(HasSubstr("base lacks 1 of the weights"), HasSubstr("connector.weight")));
  EXPECT_THAT(said_of({.drawn = {}, .resized = {parameter("lm_head.weight")}, .left_out = {}}),
              AllOf(HasSubstr("another number of rows in 1"), HasSubstr("lm_head.weight")));
  EXPECT_THAT(said_of({.drawn = {}, .resized = {}, .left_out = {"old.weight"}}),
              AllOf(HasSubstr("1 tensors more"), HasSubstr("old.weight")));
}

TEST(NewWeightsTest, WithLoraOnlyWhatIsSavedMayBeNew) {
  models::LoadedWeights loaded{.drawn = {parameter("connector.weight")}, .resized = {}, .left_out = {}};
  EXPECT_THAT(planner::message_of([&] { check_new_weights(loaded, /*with_lora=*/true, "base"); }),
              AllOf(HasSubstr("connector.weight"), HasSubstr("lora.modules_to_save")));
  loaded.drawn.front().in_modules_to_save = true;
  EXPECT_THAT(said_of(loaded, /*with_lora=*/true), HasSubstr("base lacks 1 of the weights"));
}

}  // namespace
}  // namespace vlmtrain::train
