#include "vlmtrain/base/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

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
  EXPECT_EQ(ContentHash().add(text).to_hex(), ContentHash().add(text).to_hex());
  EXPECT_EQ(ContentHash().add(text).to_hex().size(), 16U);
}

/// The expected values are the output of `xxhsum -H64`.
TEST(Xxh64, MatchesTheReference) {
  EXPECT_EQ(Xxh64().to_hex(), "ef46db3751d8e999");
  EXPECT_EQ(Xxh64().add("abc").to_hex(), "44bc2cf5ad770999");
  EXPECT_EQ(Xxh64().add("Nobody inspects the spammish repetition").to_hex(), "fbcea83c8a378bf1");
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  EXPECT_EQ(Xxh64().add(std::string_view(text).substr(0, 31)).to_hex(), "0f187c62b1e722b7");
  EXPECT_EQ(Xxh64().add(std::string_view(text).substr(0, 32)).to_hex(), "91b0cb0931a8c629");
  EXPECT_EQ(Xxh64().add(text).to_hex(), "25275608a9cfc168");
}

TEST(Xxh64, DoesNotDependOnHowBytesAreDivided) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += static_cast<char>(i * 13);
  const auto expected = Xxh64().add(text).value();
  for (const size_t chunk_bytes : {1U, 7U, 31U, 32U, 33U, 64U, 499U}) {
    Xxh64 hash;
    for (size_t offset = 0; offset < text.size(); offset += chunk_bytes)
      hash.add(std::string_view(text).substr(offset, chunk_bytes));
    EXPECT_EQ(hash.value(), expected) << chunk_bytes;
  }
}

TEST(Xxh64, DetectsEachBitChange) {
  std::string text(100, 'x');
  const auto before = Xxh64().add(text).value();
  for (size_t byte = 0; byte < text.size(); ++byte) {
    text[byte] = static_cast<char>(text[byte] ^ 0x40);
    EXPECT_NE(Xxh64().add(text).value(), before) << byte;
    text[byte] = static_cast<char>(text[byte] ^ 0x40);
  }
}

}  // namespace
}  // namespace vlmtrain
