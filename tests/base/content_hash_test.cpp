#include "vlmtrain/base/content_hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace vlmtrain {
namespace {

TEST(ContentHash, TellsContentsApart) {
  std::set<uint64_t> seen;
  for (const std::string text : {"", "a", "b", "ab", "abcdefgh", "abcdefghi", "abcdefg"}) {
    EXPECT_TRUE(seen.insert(ContentHash().add(text).value()).second) << text;
  }
  EXPECT_TRUE(seen.insert(ContentHash().add("a").add("bc").value()).second);
  EXPECT_TRUE(seen.insert(ContentHash().add("ab").add("c").value()).second);
  EXPECT_TRUE(seen.insert(ContentHash().add(std::string(1, '\0')).value()).second) << "as long as, and not, nothing";
  EXPECT_TRUE(seen.insert(ContentHash().add(uint64_t{0}).add(uint64_t{0}).value()).second);
}

TEST(ContentHash, OneBitOfALongTextIsSeen) {
  std::string text(1000, 'x');
  const uint64_t before = ContentHash().add(text).value();
  for (const size_t place : {size_t{0}, size_t{7}, size_t{8}, size_t{500}, size_t{999}}) {
    std::string changed = text;
    changed[place] = static_cast<char>(changed[place] ^ 1);
    EXPECT_NE(ContentHash().add(changed).value(), before) << place;
  }
  EXPECT_EQ(ContentHash().add(text).text(), ContentHash().add(text).text());
  EXPECT_EQ(ContentHash().add(text).text().size(), 16U);
}

}  // namespace
}  // namespace vlmtrain
