#include "vlmtrain/io/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "io/temporary_folder.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class ReadJson : public TemporaryFolderTest {};

TEST_F(ReadJson, ReadsPlainAndOrderedJson) {
  const auto path = put("a.json", "\xEF\xBB\xBF{\"b\": 1, \"a\": [true]}");
  EXPECT_EQ(read_json(path), json::parse(R"({"a": [true], "b": 1})"));
  const nlohmann::ordered_json ordered = read_ordered_json(path);
  EXPECT_EQ(ordered.begin().key(), "b");
}

TEST_F(ReadJson, RefusesUtf16Json) {
  const auto path = put("a.json", std::string_view("\xFF\xFE{\0}\0", 6));
  EXPECT_THAT(get_error_message([&] { read_json(path); }),
              AllOf(HasSubstr(path.string()), HasSubstr("is UTF-16"), HasSubstr("iconv -f UTF-16 -t UTF-8")));
}

TEST_F(ReadJson, NamesFileLineAndColumn) {
  const auto path = put("a.json", "{\n  \"a\": 1,\n  \"\xC3\xA4\xC3\xB6\": x}\n");
  const std::string message = get_error_message([&] { read_json(path); });
  EXPECT_THAT(message, AllOf(HasSubstr(path.string()), HasSubstr("line 3, column 9:"), HasSubstr("invalid literal")));
  EXPECT_EQ(message, get_error_message([&] { read_ordered_json(path); }));
}

TEST_F(ReadJson, ReportsMissingFilesAndFolders) {
  EXPECT_THAT(get_error_message([&] { read_json(folder() / "none"); }),
              AllOf(HasSubstr((folder() / "none").string()), HasSubstr("No such file")));
  EXPECT_THAT(get_error_message([&] { read_json(folder()); }), HasSubstr("is a folder"));
}

TEST(FindJsonError, KeepsTheReasonShortAndPrintable) {
  const JsonError unclosed = find_json_error("{\"a\": \"" + std::string(100'000, 'x'));
  EXPECT_EQ(unclosed.column, 7 + 100'000 + 1);
  EXPECT_LT(unclosed.reason.size(), 201);
  EXPECT_THAT(find_json_error("[1e999]").reason, HasSubstr("number overflow"));
  EXPECT_EQ(find_json_error("[1e999]").line, 1);
  EXPECT_THAT(find_json_error("[\"\xFF\"]").reason, AllOf(HasSubstr("UTF-8"), Not(HasSubstr("\xFF"))));
  EXPECT_THAT(find_json_error("").reason, HasSubstr("end of input"));
  EXPECT_THAT(find_json_error("[1").reason, HasSubstr("expected ']'"));
  EXPECT_THROW(find_json_error("[]"), InternalError);
}

TEST_F(ReadJson, DeepNestingIsAnError) {
  for (const std::string open : {"[", "{\"a\":", "[{\"a\":"}) {
    std::string text;
    for (int i = 0; i < 200'000; ++i) text += open;
    const auto path = put("deep.json", text);
    EXPECT_THAT(get_error_message([&] { read_json(path); }),
                AllOf(HasSubstr("deep.json: not valid JSON at line 1, column "),
                      HasSubstr("more than 200 nested lists and objects")));
    EXPECT_THAT(get_error_message([&] { read_ordered_json(path); }),
                HasSubstr("more than 200 nested lists and objects"));
    EXPECT_FALSE(try_parse_json(text).has_value());
  }
  // The text is valid JSON, so a parser alone would accept it.
  const std::string text = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_THAT(get_error_message([&] { parse_json(text, "whole"); }), HasSubstr("column 201"));
}

TEST(ParseJson, AcceptsNestingUpToTheLimit) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(try_parse_json(nested(kMaxJsonDepth)).has_value());
  EXPECT_FALSE(try_parse_json(nested(kMaxJsonDepth + 1)).has_value());
  // Brackets in strings do not count.
  EXPECT_TRUE(try_parse_json("[\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '{') + "\"]").has_value());
  // Closing brackets without a partner do not offset later opening ones.
  EXPECT_FALSE(try_parse_json(std::string(5000, ']') + nested(300)).has_value());
}

TEST(ParseJson, OrderedObjectsOfAMillionKeysAreRefusedAtOnce) {
  std::string text = "{";
  for (int i = 0; i < 1'000'000; ++i) text += fmt::format("\"k{}\":0,", i);
  text += "\"last\":0}";
  EXPECT_THAT(get_error_message([&] { parse_ordered_json(text, "f.json"); }), HasSubstr("an object has 1000001 keys"));
  std::string list = "[0";
  for (int i = 0; i < 100'000; ++i) list += ",0";
  EXPECT_EQ(parse_ordered_json(list + "]", "f.json").size(), 100'001U);
}

TEST(JsonText, EscapesInvalidAndControlCharacters) {
  const json value{{"path", "caf\xE9"}, {"id", "a\x1b[2J\n\xC2\x9B\x7f"}};
  EXPECT_EQ(to_json_string(value), R"({"id":"a\u001b[2J\n\u009b\u007f","path":"caf)"
                                   "\xEF\xBF\xBD"
                                   R"("})");
  EXPECT_EQ(json::parse(to_json_string(value))["id"], value["id"]);
  EXPECT_EQ(to_json_string(json{{"a", 1}}, 2), "{\n  \"a\": 1\n}");
  EXPECT_LT(make_json_excerpt(json(std::string(100'000, 'x'))).size(), 150U);
}

TEST(JsonGet, ReadsTypes) {
  const json object = json::parse(R"({"b": true, "i": -3, "u": 7, "f": 1.5, "s": "x", "l": [1, 2], "n": null})");
  EXPECT_TRUE(get<bool>(object, "b", "f.json"));
  EXPECT_EQ(get<int>(object, "i", "f.json"), -3);
  EXPECT_EQ(get<uint8_t>(object, "u", "f.json"), 7);
  EXPECT_DOUBLE_EQ(get<double>(object, "u", "f.json"), 7.0);
  EXPECT_FLOAT_EQ(get<float>(object, "f", "f.json"), 1.5F);
  EXPECT_EQ(get<std::string>(object, "s", "f.json"), "x");
  EXPECT_THAT(get<std::vector<int64_t>>(object, "l", "f.json"), ElementsAre(1, 2));
  EXPECT_EQ(get_or<int>(object, "none", 5, "f.json"), 5);
  EXPECT_EQ(get_or<std::string>(object, "n", "default", "f.json"), "default");
  EXPECT_EQ(get_or<int>(object, "u", 5, "f.json"), 7);
}

TEST(JsonGet, RefusesMismatchedTypes) {
  const json object = json::parse(
      R"({"b": true, "i": -3, "big": 300, "huge": 18446744073709551615, "f": 1.5, "s": "3", "l": [1, "x"], "n": null})");
  EXPECT_EQ(get_error_message([&] { get<int>(object, "none", "f.json"); }),
            "f.json: the key \"none\" is missing; add it, or use the original file");
  EXPECT_EQ(get_error_message([&] { get<int>(object, "s", "f.json"); }),
            "f.json: \"s\" must be a whole number, not \"3\"; correct it");
  EXPECT_THAT(get_error_message([&] { get<int>(object, "f", "f.json"); }), HasSubstr("not 1.5"));
  EXPECT_THAT(get_error_message([&] { get<int>(object, "b", "f.json"); }), HasSubstr("not true"));
  EXPECT_THAT(get_error_message([&] { get<uint32_t>(object, "i", "f.json"); }), HasSubstr("at least 0, not -3"));
  EXPECT_THAT(get_error_message([&] { get<uint8_t>(object, "big", "f.json"); }), HasSubstr("not 300"));
  EXPECT_THAT(get_error_message([&] { get<int64_t>(object, "huge", "f.json"); }),
              HasSubstr("not 18446744073709551615"));
  EXPECT_THAT(get_error_message([&] { get<bool>(object, "n", "f.json"); }), HasSubstr("true or false, not null"));
  EXPECT_THAT(get_error_message([&] { get<std::vector<int>>(object, "l", "f.json"); }),
              HasSubstr("a whole number, not \"x\""));
  EXPECT_THAT(get_error_message([&] { get<std::vector<int>>(object, "s", "f.json"); }), HasSubstr("must be a list"));
  EXPECT_THAT(get_error_message([&] { get_or<int>(object, "s", 1, "f.json"); }), HasSubstr("not \"3\""));
  EXPECT_THAT(get_error_message([&] { get<int>(json::array(), "s", "f.json"); }), HasSubstr("a JSON object"));
  EXPECT_THAT(get_error_message([&] { get_or<int>(json("x"), "s", 1, "f.json"); }), HasSubstr("a JSON object"));
}

TEST(JsonGet, ShortensLongValues) {
  const json object = {{"k", std::string(1000, 'x')}};
  EXPECT_LT(get_error_message([&] { get<int>(object, "k", "f.json"); }).size(), 120);
}

TEST(UnreadKeysTest, ReturnsKeysThatAreNeitherReadNorHarmless) {
  constexpr std::array<std::string_view, 1> kRead{"id"};
  constexpr std::array<HarmlessKey, 1> kHarmless{{{"source", "provenance"}}};
  const auto object = nlohmann::json::parse(R"({"id": 1, "source": "x", "weight": 0, "bbox": [1]})");
  EXPECT_THAT(find_unread_keys(object, kRead, kHarmless), ElementsAre("bbox", "weight"));
}

TEST(UnreadKeysTest, SkipsEmptyValues) {
  const auto object = nlohmann::json::parse(R"({"a": null, "b": "", "c": [], "d": {}})");
  EXPECT_THAT(find_unread_keys(object, {}), IsEmpty());
  EXPECT_THAT(find_unread_keys({{"zero", 0}, {"no", false}}, {}), ElementsAre("no", "zero"));
}

TEST(FieldAliasTest, BothNamesAreWritten) {
  nlohmann::ordered_json object{{"new", {{"inner", 1}}}, {"other", 2}};
  add_field_aliases(object, {{"new", "old"}});
  EXPECT_EQ(object.dump(), R"({"new":{"inner":1},"other":2,"old":{"inner":1}})");
}

TEST(FieldAliasTest, TheAliasIsReadWhereTheNameIsAbsent) {
  const FieldAlias field{"new", "old"};
  EXPECT_STREQ(find_field_name(json{{"new", 1}, {"old", 2}}, field), "new");
  EXPECT_STREQ(find_field_name(json{{"old", 2}}, field), "old");
  EXPECT_STREQ(find_field_name(json::object(), field), "new");
  EXPECT_STREQ(find_field_name(json::array({1}), field), "new");
}

}  // namespace
}  // namespace vlmtrain::io
