#include <gtest/gtest.h>

#include "vlmtrain/base/hash.h"

namespace vlmtrain {
namespace {

/// As `xxhsum -H64` prints them.
TEST(Xxh64, MatchesTheReference) {
  EXPECT_EQ(Xxh64().hex(), "ef46db3751d8e999");
  EXPECT_EQ(Xxh64().add("abc").hex(), "44bc2cf5ad770999");
  EXPECT_EQ(Xxh64().add("Nobody inspects the spammish repetition").hex(), "fbcea83c8a378bf1");
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  EXPECT_EQ(Xxh64().add(std::string_view(text).substr(0, 31)).hex(), "0f187c62b1e722b7");
  EXPECT_EQ(Xxh64().add(std::string_view(text).substr(0, 32)).hex(), "91b0cb0931a8c629");
  EXPECT_EQ(Xxh64().add(text).hex(), "25275608a9cfc168");
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
