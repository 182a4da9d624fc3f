#include "vlmtrain/base/text_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain {

namespace {

TEST(HumanCountTest, SeparatesThousands) {
  EXPECT_EQ(format_with_commas(0), "0");
  EXPECT_EQ(format_with_commas(999), "999");
  EXPECT_EQ(format_with_commas(1'000'007), "1,000,007");
}

TEST(HumanCountTest, UsesTheSingularForOne) {
  EXPECT_EQ(pluralize(1, "tile"), "1 tile");
  EXPECT_EQ(pluralize(2600, "tile"), "2,600 tiles");
}

TEST(HumanCountTest, SmallCountsAreExact) {
  EXPECT_EQ(format_rounded_count(2'246'272'880), "2.25 billion");
  EXPECT_EQ(format_rounded_count(1'300'000), "1.3 million");
  EXPECT_EQ(format_rounded_count(9'216), "9,216") << "as adapters of a small model; 0.0 million would be none";
}

TEST(ParseSuffixInt, ReturnsTheNumberAfterThePrefix) {
  EXPECT_EQ(parse_int_after_prefix("step-", "step-7"), 7);
  EXPECT_EQ(parse_int_after_prefix("step-", "step-0012"), 12);
  EXPECT_EQ(parse_int_after_prefix("cuda:", "cuda:-1"), -1);
  for (const char* text : {"step-", "step-x", "step-7x", "step-7 ", "ste", "", "step--", "step-9223372036854775808"}) {
    EXPECT_EQ(parse_int_after_prefix("step-", text), std::nullopt) << text;
  }
}

TEST(FormatBytes, ChoosesTheUnit) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(int64_t{24} << 30), "24.0 GiB");
}

TEST(Printable, KeepsTextsOfAllLanguages) {
  for (const char* text : {"", "a b\\c", "Größe 5 µm", "東京", "\xF0\x9F\xA9\xBA", "\xEF\xBF\xBD"}) {
    EXPECT_EQ(to_printable(text), text);
  }
}

TEST(Printable, EscapesControlCharacters) {
  EXPECT_EQ(to_printable("a\x1b[2J\x07\x7f"), "a\\x1b[2J\\x07\\x7f");
  EXPECT_EQ(to_printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(to_printable("line\r\nnext\tcell"), "line\\r\\nnext\\tcell");
  EXPECT_EQ(to_printable("\xC2\x9B"
                         "31m"),
            "\\u009b31m");
  EXPECT_EQ(to_printable("\xE2\x80\xAE"
                         "gpj.exe"),
            "\\u202egpj.exe");
  EXPECT_EQ(to_printable_lines("line\r\nnext\tcell"), "line\\r\nnext\\tcell");
}

TEST(Printable, EscapesInvalidUtf8) {
  EXPECT_EQ(to_printable("caf\xE9.jpg"), "caf\\xe9.jpg");
  EXPECT_EQ(to_printable("\xC3"), "\\xc3");
  EXPECT_EQ(to_printable("\xC0\xAF"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(to_printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(to_printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // past U+10FFFF
  EXPECT_EQ(to_printable("\xE2\x82"
                         "a"),
            "\\xe2\\x82"
            "a");
}

TEST(Printable, ExcerptsAreShortened) {
  EXPECT_EQ(make_excerpt("short"), "short");
  EXPECT_EQ(make_excerpt(std::string(kMaxExcerptCharacters, 'x')), std::string(kMaxExcerptCharacters, 'x'));
  EXPECT_EQ(make_excerpt(std::string(kMaxExcerptCharacters + 1, 'x')), std::string(kMaxExcerptCharacters, 'x') + "…");
  EXPECT_EQ(make_excerpt("ééé", 2), "éé…");
}

TEST(Printable, FurtherLinesOfAMessageAreIndented) {
  EXPECT_EQ(to_printable_message("a\nb\n  c\n"), "a\n  b\n  c\n  ");
}

TEST(Printable, LogMessagesAreEscaped) {
  testing::internal::CaptureStderr();
  init_logging(/*quiet=*/false);
  spdlog::warn("dropped: {}", "x\x1b[2J\xFF\n12:00:00 info all is well");
  spdlog::default_logger()->flush();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("warning dropped: x\\x1b[2J\\xff\n  12:00:00 info all is well\n"));
}

TEST(FirstLineTest, ReturnsTheFirstNonEmptyLine) {
  EXPECT_EQ(get_first_line("one"), "one");
  EXPECT_EQ(get_first_line("one\ntwo"), "one");
  EXPECT_EQ(get_first_line("\n\none\n"), "one");
  EXPECT_EQ(get_first_line("\n"), "");
  EXPECT_EQ(get_first_line(""), "");
}

}  // namespace

}  // namespace vlmtrain
