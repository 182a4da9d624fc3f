#include <gtest/gtest.h>

#include <set>
#include <string>

#include "vlmtrain/base/hash.h"

namespace vlmtrain {
namespace {

TEST(ContentHash, DistinguishesContents) {
  std::set<uint64_t> hashes;
  for (const std::string text : {"", "a", "b", "ab", "abcdefgh", "abcdefghi", "abcdefg"}) {
    EXPECT_TRUE(hashes.insert(ContentHash().add(text).value()).second) << text;
  }
  EXPECT_TRUE(hashes.insert(ContentHash().add("a").add("bc").value()).second);
  EXPECT_TRUE(hashes.insert(ContentHash().add("ab").add("c").value()).second);
  EXPECT_TRUE(hashes.insert(ContentHash().add(std::string(1, '\0')).value()).second) << "as long as, and not, nothing";
  EXPECT_TRUE(hashes.insert(ContentHash().add(uint64_t{0}).add(uint64_t{0}).value()).second);
}

TEST(ContentHash, DetectsASingleBitChange) {
  std::string text(1000, 'x');
  const uint64_t before = ContentHash().add(text).value();
  for (const size_t position : {size_t{0}, size_t{7}, size_t{8}, size_t{500}, size_t{999}}) {
    std::string changed = text;
    changed[position] = static_cast<char>(changed[position] ^ 1);
    EXPECT_NE(ContentHash().add(changed).value(), before) << position;
  }
  EXPECT_EQ(ContentHash().add(text).hex(), ContentHash().add(text).hex());
  EXPECT_EQ(ContentHash().add(text).hex().size(), 16U);
}

}  // namespace
}  // namespace vlmtrain
