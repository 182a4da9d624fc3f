#include "train/new_weights.h"

#include <gmock/gmock.h>

#include "base/captured_log.h"
#include "planner/user_error.h"

namespace vlmtrain::train {
namespace {

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
  check_new_weights(loaded_weights, with_lora, "base");
  return log.text();
}

TEST(NewWeightsTest, LogsWeightsThatTheCheckpointLacks) {
  EXPECT_EQ(capture_log({}), "");
  EXPECT_THAT(capture_log({.initialized = {make_parameter("connector.weight")}, .resized = {}, .skipped = {}}),
              AllOf(HasSubstr("base lacks 1 of the weights"), HasSubstr("connector.weight")));
  EXPECT_THAT(capture_log({.initialized = {}, .resized = {make_parameter("lm_head.weight")}, .skipped = {}}),
              AllOf(HasSubstr("another number of rows in 1"), HasSubstr("lm_head.weight")));
  EXPECT_THAT(capture_log({.initialized = {}, .resized = {}, .skipped = {"old.weight"}}),
              AllOf(HasSubstr("1 tensors more"), HasSubstr("old.weight")));
}

TEST(NewWeightsTest, WithLoraOnlySavedModulesMayBeNew) {
  models::LoadResult loaded_weights{.initialized = {make_parameter("connector.weight")}, .resized = {}, .skipped = {}};
  EXPECT_THAT(planner::get_error_message([&] { check_new_weights(loaded_weights, /*with_lora=*/true, "base"); }),
              AllOf(HasSubstr("connector.weight"), HasSubstr("lora.modules_to_save")));
  loaded_weights.initialized.front().in_modules_to_save = true;
  EXPECT_THAT(capture_log(loaded_weights, /*with_lora=*/true), HasSubstr("base lacks 1 of the weights"));
}

}  // namespace
}  // namespace vlmtrain::train
