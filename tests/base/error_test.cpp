#include "vlmtrain/base/error.h"

#include <gtest/gtest.h>

namespace vlmtrain {
namespace {

TEST(FirstLineTest, ReturnsTheFirstNonEmptyLine) {
  EXPECT_EQ(get_first_line("one"), "one");
  EXPECT_EQ(get_first_line("one\ntwo"), "one");
  EXPECT_EQ(get_first_line("\n\none\n"), "one");
  EXPECT_EQ(get_first_line("\n"), "");
  EXPECT_EQ(get_first_line(""), "");
}

}  // namespace
}  // namespace vlmtrain
