#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/checkpoints/load_weights.h"
#include "parity/case.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(WeightsFitTest, WeightsBeyondTheMemoryLimitAreRefused) {
  const auto folder = parity::Case("mixed_batch").checkpoint();
  const auto model = build_model(folder, at::kCPU, at::kBFloat16);
  const int64_t bytes = 2 * model->parameters().count_elements();
  EXPECT_NO_THROW(check_host_memory(*model, folder, {.bytes = bytes, .limit_source = "a test"}));
  try {
    check_host_memory(*model, folder, {.bytes = bytes - 1, .limit_source = "a test"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(folder.string()), HasSubstr("(a test)")));
  }
}

}  // namespace
}  // namespace vlmtrain::models
