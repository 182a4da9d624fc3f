#include "vlmtrain/base/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain {
namespace {

using testing::HasSubstr;

TEST(Regex, FindsMatchesAndGroups) {
  const Regex regex(R"((\d+)-(?:(\d+)|x))");
  EXPECT_EQ(regex.num_groups(), 2);
  const auto match = regex.search("a 12-34 5-x");
  ASSERT_TRUE(match);
  EXPECT_EQ((*match)[0]->begin, 2);
  EXPECT_EQ((*match)[0]->end, 7);
  EXPECT_EQ((*match)[2]->begin, 5);
  const auto next = regex.search("a 12-34 5-x", 7);
  ASSERT_TRUE(next);
  EXPECT_EQ((*next)[1]->begin, 8);
  EXPECT_FALSE((*next)[2]);
  EXPECT_FALSE(regex.search("a 12-34", 4));
}

TEST(Regex, NamesGroups) {
  const Regex regex(R"((?<y>\d)(?<x>\d))");
  EXPECT_EQ(regex.find_group("x"), 2);
  EXPECT_EQ(regex.find_group("z"), std::nullopt);
}

TEST(Regex, MatchesWholeTextsOnRequest) {
  const Regex regex("a|ab", {.matches_whole_text = true});
  EXPECT_TRUE(regex.search("ab"));
  EXPECT_FALSE(regex.search("abc"));
}

TEST(Regex, InvalidExpressionsNameThePosition) {
  try {
    const Regex regex("a(b");
    FAIL();
  } catch (const RegexError& error) {
    EXPECT_THAT(error.what(), HasSubstr("at character 3"));
  }
}

TEST(Regex, ExponentialSearchesEnd) {
  const Regex regex("(a+)+[bc]");
  EXPECT_THROW(regex.search(std::string(100, 'a')), RegexError);
}

}  // namespace
}  // namespace vlmtrain
