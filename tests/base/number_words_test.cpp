#include "vlmtrain/base/number_words.h"

#include <gtest/gtest.h>

namespace vlmtrain {
namespace {

TEST(NumberWordsTest, ThousandsAreGrouped) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1'000'007), "1,000,007");
}

TEST(NumberWordsTest, OneIsNotMany) {
  EXPECT_EQ(counted(1, "tile"), "1 tile");
  EXPECT_EQ(counted(2600, "tile"), "2,600 tiles");
}

TEST(NumberWordsTest, ALittleIsNotNothing) {
  EXPECT_EQ(number_words(2'246'272'880), "2.25 billion");
  EXPECT_EQ(number_words(1'300'000), "1.3 million");
  EXPECT_EQ(number_words(9'216), "9,216") << "as adapters of a small model; 0.0 million would be none";
}

}  // namespace
}  // namespace vlmtrain
