#include "vlmtrain/base/printable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/base/log.h"

namespace vlmtrain {
namespace {

TEST(Printable, LeavesTextsOfAllLanguagesAlone) {
  for (const char* text : {"", "a b\\c", "Größe 5 µm", "東京", "\xF0\x9F\xA9\xBA", "\xEF\xBF\xBD"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, EscapesWhatControlsATerminal) {
  EXPECT_EQ(printable("a\x1b[2J\x07\x7f"), "a\\x1b[2J\\x07\\x7f");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("line\r\nnext\tcell"), "line\\r\\nnext\\tcell");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\u009b31m");
  EXPECT_EQ(printable("\xE2\x80\xAE"
                      "gpj.exe"),
            "\\u202egpj.exe");
  EXPECT_EQ(printable_lines("line\r\nnext\tcell"), "line\\r\nnext\\tcell");
}

TEST(Printable, ShowsBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("caf\xE9.jpg"), "caf\\xe9.jpg");
  EXPECT_EQ(printable("\xC3"), "\\xc3");
  EXPECT_EQ(printable("\xC0\xAF"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // past U+10FFFF
  EXPECT_EQ(printable("\xE2\x82"
                      "a"),
            "\\xe2\\x82"
            "a");
}

TEST(Printable, AQuoteIsALine) {
  EXPECT_EQ(excerpt("short"), "short");
  EXPECT_EQ(excerpt(std::string(kExcerptCharacters, 'x')), std::string(kExcerptCharacters, 'x'));
  EXPECT_EQ(excerpt(std::string(kExcerptCharacters + 1, 'x')), std::string(kExcerptCharacters, 'x') + "…");
  EXPECT_EQ(excerpt("ééé", 2), "éé…");
}

TEST(Printable, FurtherLinesOfAMessageAreIndented) {
  EXPECT_EQ(printable_message("a\nb\n  c\n"), "a\n  b\n  c\n  ");
}

TEST(Printable, TheLogIs) {
  testing::internal::CaptureStderr();
  start_log(/*quiet=*/false);
  spdlog::warn("dropped: {}", "x\x1b[2J\xFF\n12:00:00 info all is well");
  spdlog::default_logger()->flush();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("warning dropped: x\\x1b[2J\\xff\n  12:00:00 info all is well\n"));
}

}  // namespace
}  // namespace vlmtrain
