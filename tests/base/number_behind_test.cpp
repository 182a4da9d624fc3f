#include "vlmtrain/base/number_behind.h"

#include <gtest/gtest.h>

namespace vlmtrain {
namespace {

TEST(NumberBehind, IsAllThatStandsBehindThePrefix) {
  EXPECT_EQ(number_behind("step-", "step-7"), 7);
  EXPECT_EQ(number_behind("step-", "step-0012"), 12);
  EXPECT_EQ(number_behind("cuda:", "cuda:-1"), -1);
  for (const char* text : {"step-", "step-x", "step-7x", "step-7 ", "ste", "", "step--", "step-9223372036854775808"}) {
    EXPECT_EQ(number_behind("step-", text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace vlmtrain
