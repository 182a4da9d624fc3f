#include "train/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parity/case.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class HostMemoryTest : public testing::Test {
 protected:
  static std::unique_ptr<models::VisionLanguageModel> model(at::ScalarType dtype,
                                                            const std::optional<nn::LoraSettings>& lora = {}) {
    return models::build_model(parity::Case("mixed_batch").checkpoint(), at::kCPU, dtype, lora);
  }

  static bool fits(const models::VisionLanguageModel& model, int64_t bytes) {
    try {
      check_fits_host(model, Config{}, bytes);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
      return false;
    }
    return true;
  }
};

TEST_F(HostMemoryTest, FullTrainingTakesSixteenBytesAParameterInFp32) {
  const auto full = model(at::kFloat);
  const int64_t bytes = 16 * full->parameters().total_elements();
  EXPECT_TRUE(fits(*full, bytes));
  EXPECT_FALSE(fits(*full, bytes - 1));
}

TEST_F(HostMemoryTest, FullTrainingTakesEighteenBytesAParameterInBf16) {
  const auto full = model(at::kBFloat16);
  const int64_t bytes = 18 * full->parameters().total_elements();
  EXPECT_TRUE(fits(*full, bytes));
  EXPECT_FALSE(fits(*full, bytes - 1));
}

TEST_F(HostMemoryTest, WhatIsNotTrainedTakesItsWeightsOnly) {
  const auto full = model(at::kFloat);
  models::freeze(*full, {.vision_tower = true, .projector = true, .language_model = true});
  const int64_t weights = 4 * full->parameters().total_elements();
  EXPECT_TRUE(fits(*full, weights));
  EXPECT_FALSE(fits(*full, weights - 1));

  const auto adapted = model(at::kFloat, nn::LoraSettings{.rank = 2});
  int64_t trained = 0;
  for (const auto& parameter : adapted->parameters().all()) trained += parameter.is_adapter ? parameter.elements() : 0;
  EXPECT_TRUE(fits(*adapted, 4 * adapted->parameters().total_elements() + 12 * trained));
  EXPECT_FALSE(fits(*adapted, 4 * adapted->parameters().total_elements() + 12 * trained - 1));
}

TEST_F(HostMemoryTest, TheErrorSaysWhatWouldHelp) {
  Config config;
  config.model.path = "some/model";
  try {
    check_fits_host(*model(at::kFloat), config, 1000);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("some/model does not fit"), HasSubstr("--mem"), HasSubstr("lora.rank")));
  }
}

TEST(BytesForSamplesAhead, AreAQuarterOfWhatIsLeft) {
  EXPECT_EQ(bytes_for_samples_ahead(10'000, 2'000), 2'000);
  EXPECT_EQ(bytes_for_samples_ahead(10'000, 12'000), 1);
}

}  // namespace
}  // namespace vlmtrain::train
