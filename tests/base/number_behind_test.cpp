#include <gtest/gtest.h>

#include "vlmtrain/base/text_format.h"

namespace vlmtrain {
namespace {

TEST(ParseSuffixInt, ReturnsTheNumberAfterThePrefix) {
  EXPECT_EQ(parse_suffix_int("step-", "step-7"), 7);
  EXPECT_EQ(parse_suffix_int("step-", "step-0012"), 12);
  EXPECT_EQ(parse_suffix_int("cuda:", "cuda:-1"), -1);
  for (const char* text : {"step-", "step-x", "step-7x", "step-7 ", "ste", "", "step--", "step-9223372036854775808"}) {
    EXPECT_EQ(parse_suffix_int("step-", text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace vlmtrain
