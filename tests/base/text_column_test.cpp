#include "vlmtrain/base/text_column.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace vlmtrain {
namespace {

TEST(TextColumnTest, HoldsTextsInAnyOrder) {
  TextColumn texts(3);
  EXPECT_EQ(texts[1], "");
  texts.set(2, "third");
  texts.set(0, std::string("a\0b", 3));
  texts.push_back("fourth");
  EXPECT_EQ(texts[0], std::string_view("a\0b", 3));
  EXPECT_EQ(texts[1], "");
  EXPECT_EQ(texts[2], "third");
  EXPECT_EQ(texts[3], "fourth");
  texts.set(2, "another");
  EXPECT_EQ(texts[2], "another");
  EXPECT_EQ(texts.size(), 4);
  EXPECT_THROW(texts[4], std::out_of_range);
}

TEST(TextColumnTest, EqualIsWhatHasTheSameTexts) {
  TextColumn a(2), b(2);
  a.set(0, "a");
  a.set(1, "b");
  b.set(1, "b");
  EXPECT_FALSE(a == b);
  b.set(0, "a");
  EXPECT_TRUE(a == b) << "they lie in another order";
  EXPECT_FALSE(a == TextColumn(3));
}

TEST(DictionaryTextColumnTest, HoldsTexts) {
  DictionaryTextColumn texts(4);
  texts.set(1, "vqa");
  texts.set(2, "caption");
  texts.set(3, "vqa");
  EXPECT_EQ(texts[0], "");
  EXPECT_EQ(texts[1], "vqa");
  EXPECT_EQ(texts[2], "caption");
  EXPECT_EQ(texts[3], "vqa");
  texts.set(3, "");
  EXPECT_EQ(texts[3], "");
}

}  // namespace
}  // namespace vlmtrain
