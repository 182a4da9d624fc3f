#include <gtest/gtest.h>

#include "vlmtrain/base/text_format.h"

namespace vlmtrain {
namespace {

TEST(HumanCountTest, SeparatesThousands) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1'000'007), "1,000,007");
}

TEST(HumanCountTest, UsesTheSingularForOne) {
  EXPECT_EQ(pluralize(1, "tile"), "1 tile");
  EXPECT_EQ(pluralize(2600, "tile"), "2,600 tiles");
}

TEST(HumanCountTest, SmallCountsAreExact) {
  EXPECT_EQ(human_count(2'246'272'880), "2.25 billion");
  EXPECT_EQ(human_count(1'300'000), "1.3 million");
  EXPECT_EQ(human_count(9'216), "9,216") << "as adapters of a small model; 0.0 million would be none";
}

}  // namespace
}  // namespace vlmtrain
