#include "vlmtrain/base/text_format.h"

#include <gtest/gtest.h>

namespace vlmtrain {
namespace {

TEST(HumanCountTest, SeparatesThousands) {
  EXPECT_EQ(format_with_commas(0), "0");
  EXPECT_EQ(format_with_commas(999), "999");
  EXPECT_EQ(format_with_commas(1'000'007), "1,000,007");
}

TEST(HumanCountTest, UsesTheSingularForOne) {
  EXPECT_EQ(pluralize(1, "tile"), "1 tile");
  EXPECT_EQ(pluralize(2600, "tile"), "2,600 tiles");
}

TEST(HumanCountTest, SmallCountsAreExact) {
  EXPECT_EQ(format_rounded_count(2'246'272'880), "2.25 billion");
  EXPECT_EQ(format_rounded_count(1'300'000), "1.3 million");
  EXPECT_EQ(format_rounded_count(9'216), "9,216") << "as adapters of a small model; 0.0 million would be none";
}

TEST(ParseSuffixInt, ReturnsTheNumberAfterThePrefix) {
  EXPECT_EQ(parse_int_after_prefix("step-", "step-7"), 7);
  EXPECT_EQ(parse_int_after_prefix("step-", "step-0012"), 12);
  EXPECT_EQ(parse_int_after_prefix("cuda:", "cuda:-1"), -1);
  for (const char* text : {"step-", "step-x", "step-7x", "step-7 ", "ste", "", "step--", "step-9223372036854775808"}) {
    EXPECT_EQ(parse_int_after_prefix("step-", text), std::nullopt) << text;
  }
}

TEST(FormatBytes, ChoosesTheUnit) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(int64_t{24} << 30), "24.0 GiB");
}

}  // namespace
}  // namespace vlmtrain
