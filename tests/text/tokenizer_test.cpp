#include "vlmtrain/text/tokenizer.h"

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <tuple>

#include "text/test_data.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Returns a small file with the tokens a, b, c, ab, "e with acute", "▁" and one merge.
json make_small_json() {
  return json::parse(R"({
    "added_tokens": [{"id": 6, "content": "<x>", "normalized": false, "special": true}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "\u00e9": 4, "\u2581": 5}, "merges": [["a", "b"]]}
  })");
}

Tokenizer parse_tokenizer(const json& file) {
  return Tokenizer::from_json(file.dump(), "dir/tokenizer.json");
}

std::string get_tokenizer_error(const std::string& text) {
  try {
    Tokenizer::from_json(text, "dir/tokenizer.json");
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }
  return "no error";
}

std::string get_tokenizer_error(const json& file) {
  return get_tokenizer_error(file.dump());
}

TEST(Tokenizer, MergesAndFindsAddedTokens) {
  const Tokenizer tokenizer = parse_tokenizer(make_small_json());
  const Encoding encoding = tokenizer.encode("cab<x>a");
  EXPECT_THAT(encoding.ids, ElementsAre(2, 3, 6, 0));
  EXPECT_THAT(encoding.starts, ElementsAre(0, 1, 3, 6));
}

TEST(Tokenizer, ExtraSpecialTokensGetTheLastIds) {
  json file = make_small_json();
  file["model"]["vocab"]["<in vocabulary>"] = 6;
  file["added_tokens"][0]["id"] = 7;
  const std::vector<std::string> extra_tokens{"<new>", "<x>", "<in vocabulary>", "<newer>", "<new>"};
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "tokenizer.json", extra_tokens);
  EXPECT_THAT(tokenizer.encode("a<newer><x><in vocabulary><new>b").ids, ElementsAre(0, 9, 7, 6, 8, 1));
  EXPECT_EQ(tokenizer.vocab_size(), 10);
  EXPECT_TRUE(tokenizer.is_special(6));
  EXPECT_EQ(tokenizer.decode(std::vector<int64_t>{0, 9}, /*skip_special_tokens=*/true), "a");
}

TEST(Tokenizer, LooksUpTokens) {
  const Tokenizer tokenizer = parse_tokenizer(make_small_json());
  EXPECT_EQ(tokenizer.vocab_size(), 7);
  EXPECT_EQ(tokenizer.token_to_id("ab"), 3);
  EXPECT_EQ(tokenizer.token_to_id("<x>"), 6);
  EXPECT_EQ(tokenizer.token_to_id("zz"), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(6), "<x>");
  EXPECT_EQ(tokenizer.id_to_token(3), "ab");
  EXPECT_EQ(tokenizer.id_to_token(7), "");
  EXPECT_EQ(tokenizer.id_to_token(-100), "");
  EXPECT_TRUE(tokenizer.is_special(6));
  EXPECT_FALSE(tokenizer.is_special(3));
}

TEST(Tokenizer, DecodeSkipsIdsWithoutToken) {
  json file = make_small_json();
  file["decoder"] = {{"type", "Fuse"}};
  EXPECT_EQ(parse_tokenizer(file).decode(std::vector<int64_t>{3, -100, 99, 6, 2}, false), "ab<x>c");
  EXPECT_EQ(parse_tokenizer(file).decode(std::vector<int64_t>{3, -100, 99, 6, 2}, true), "abc");
}

TEST(Tokenizer, OffsetsPrecedePrependAndReplace) {
  json file = make_small_json();
  file["normalizer"] = json::parse(R"({"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "\u2581"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]})");
  const Encoding encoding = parse_tokenizer(file).encode("ab c<x>b");
  EXPECT_THAT(encoding.ids, ElementsAre(5, 3, 5, 2, 6, 5, 1));
  EXPECT_THAT(encoding.starts, ElementsAre(0, 0, 2, 3, 4, 7, 7));
}

TEST(Tokenizer, OffsetsPrecedeNfc) {
  json file = make_small_json();
  file["normalizer"] = {{"type", "NFC"}};
  const Encoding encoding = parse_tokenizer(file).encode("ae\u0301be\u0301c");
  EXPECT_THAT(encoding.ids, ElementsAre(0, 4, 1, 4, 2));
  EXPECT_THAT(encoding.starts, ElementsAre(0, 1, 4, 5, 8));
}

TEST(Tokenizer, SplitBehaviors) {
  const auto encode_with_split = [](const char* behavior, bool invert) {
    json file = make_small_json();
    file.erase("added_tokens");
    file["model"]["ignore_merges"] = true;
    file["model"]["vocab"]["aa"] = 6;  // no merge creates these, so that their ids reveal the pieces
    file["model"]["vocab"]["ca"] = 7;
    file["model"]["vocab"]["ac"] = 8;
    file["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", behavior}, {"invert", invert}};
    return parse_tokenizer(file).encode("caac").ids;
  };
  EXPECT_THAT(encode_with_split("Removed", false), ElementsAre(2, 2));
  EXPECT_THAT(encode_with_split("Removed", true), ElementsAre(0, 0));
  EXPECT_THAT(encode_with_split("Isolated", false), ElementsAre(2, 0, 0, 2));
  EXPECT_THAT(encode_with_split("Contiguous", false), ElementsAre(2, 6, 2));
  EXPECT_THAT(encode_with_split("MergedWithPrevious", false), ElementsAre(7, 0, 2));
  EXPECT_THAT(encode_with_split("MergedWithNext", false), ElementsAre(2, 0, 8));
}

TEST(Tokenizer, PostProcessorTokensTakeTheirNeighborsOffset) {
  json file = make_small_json();
  file["post_processor"] = json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<x>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<x>"}}],
      "special_tokens": {"<x>": {"id": "<x>", "ids": [6], "tokens": ["<x>"]}}})");
  const Encoding encoding = parse_tokenizer(file).encode("cab", true);
  EXPECT_THAT(encoding.ids, ElementsAre(6, 2, 3, 6));
  EXPECT_THAT(encoding.starts, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(parse_tokenizer(file).encode("", true).starts, ElementsAre(0, 0));
  EXPECT_THAT(parse_tokenizer(file).encode("cab", false).ids, ElementsAre(2, 3));
}

TEST(Tokenizer, RejectsInvalidUtf8) {
  const Tokenizer tokenizer = parse_tokenizer(make_small_json());
  for (const std::string& text : {std::string("ab\xFF"), std::string("ab\xC3"), std::string("ab\xED\xA0\x80")}) {
    try {
      tokenizer.encode(text);
      ADD_FAILURE() << "no error";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("not valid UTF-8 at byte 2"));
    }
  }
}

TEST(Tokenizer, LongTextsTakeLinearTime) {
  // A quadratic search would take minutes.
  std::string images;
  for (int i = 0; i < 50'000; ++i) images += "<image>";
  const Tokenizer smollm2 = Tokenizer::from_file(get_data_path("smollm2.tokenizer.json"));
  EXPECT_EQ(smollm2.encode(images).ids.size(), 50'000U);
  EXPECT_EQ(smollm2.encode(std::string(500'000, ' ') + "x").starts.back(), 500'000U);
  const Tokenizer llama2 = Tokenizer::from_file(get_data_path("llama2.tokenizer.json"));
  const Encoding encoding = llama2.encode(std::string(500'000, 'a'));
  EXPECT_TRUE(std::is_sorted(encoding.starts.begin(), encoding.starts.end()));
}

TEST(TokenizerFile, MissingFileIsReported) {
  try {
    Tokenizer::from_file("no/such/tokenizer.json");
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no/such/tokenizer.json"));
  }
}

TEST(TokenizerFile, NamedPipeIsRejectedWithoutBeingOpened) {
  const std::filesystem::path pipe_path = std::filesystem::path(testing::TempDir()) / "tokenizer_pipe.json";
  std::filesystem::remove(pipe_path);
  ASSERT_EQ(mkfifo(pipe_path.c_str(), 0600), 0);  // opening it blocks forever
  try {
    Tokenizer::from_file(pipe_path);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("is a named pipe, not a file"));
  }
  std::filesystem::remove(pipe_path);
}

TEST(TokenizerFile, InvalidJsonIsReported) {
  EXPECT_THAT(get_tokenizer_error(std::string("{\"model\": ")),
              AllOf(HasSubstr("dir/tokenizer.json"), HasSubstr("not valid JSON")));
  EXPECT_THAT(get_tokenizer_error(std::string("[]")), HasSubstr("lacks the key \"model\""));
}

TEST(TokenizerFile, UnknownComponentsListTheSupportedOnes) {
  const std::vector<std::pair<const char*, const char*>> supported_components{
      {"normalizer", "NFC, Prepend, Replace, Sequence"},
      {"pre_tokenizer", "ByteLevel, Digits, Metaspace, Split"},
      {"post_processor", "ByteLevel, TemplateProcessing"},
      {"decoder", "ByteFallback, ByteLevel, Fuse, Metaspace"}};
  for (const auto& [section, supported] : supported_components) {
    json file = make_small_json();
    file[section] = {{"type", "Unheard"}};
    EXPECT_THAT(get_tokenizer_error(file),
                AllOf(HasSubstr("dir/tokenizer.json: " + std::string(section) + " has the type \"Unheard\""),
                      HasSubstr(supported)));
  }
}

TEST(TokenizerFile, UnknownSequenceElementIsReported) {
  json file = make_small_json();
  file["normalizer"] = json::parse(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]})");
  EXPECT_THAT(get_tokenizer_error(file), HasSubstr("normalizer.normalizers[1] has the type \"NFKC\""));
}

TEST(TokenizerFile, UnsupportedModelsAreReported) {
  json file = make_small_json();
  file["model"]["type"] = "Unigram";
  EXPECT_THAT(get_tokenizer_error(file), HasSubstr("model has the type \"Unigram\""));
  file = make_small_json();
  file["model"]["end_of_word_suffix"] = "</w>";
  EXPECT_THAT(get_tokenizer_error(file), HasSubstr("model.end_of_word_suffix is \"</w>\""));
  file = make_small_json();
  file["model"]["dropout"] = 0.1;
  EXPECT_THAT(get_tokenizer_error(file), HasSubstr("model.dropout is not 0"));
}

TEST(TokenizerFile, MergesOfUnknownTokensAreReported) {
  json file = make_small_json();
  file["model"]["merges"] = {"a b", "b c"};
  EXPECT_THAT(get_tokenizer_error(file), HasSubstr("model.merges has a merge at index 1 with the token \"bc\""));
  file["model"]["merges"] = {"a b c"};
  EXPECT_THAT(get_tokenizer_error(file), HasSubstr("model.merges has \"a b c\" at index 0"));
}

TEST(TokenizerFile, ContradictoryIdsAreReported) {
  json file = make_small_json();
  file["added_tokens"][0]["content"] = "ab";
  EXPECT_THAT(get_tokenizer_error(file), HasSubstr("gives \"ab\" the id 6, but model.vocab gives it 3"));
  file = make_small_json();
  file["model"]["vocab"]["d"] = 2;
  EXPECT_THAT(get_tokenizer_error(file), HasSubstr("gives the id 2 to"));
  file = make_small_json();
  file["model"]["vocab"]["d"] = -1;
  EXPECT_THAT(get_tokenizer_error(file), HasSubstr("gives the token \"d\" the invalid id -1"));
}

TEST(TokenizerFile, InvalidRegexIsReported) {
  json file = make_small_json();
  file["pre_tokenizer"] = json::parse(R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})");
  EXPECT_THAT(get_tokenizer_error(file), HasSubstr("pre_tokenizer.pattern has the regular expression \"(a\""));
  file["pre_tokenizer"]["pattern"] = {{"String", "a"}};
  file["pre_tokenizer"]["behavior"] = "Sideways";
  EXPECT_THAT(get_tokenizer_error(file), AllOf(HasSubstr("Sideways"), HasSubstr("MergedWithNext")));
}

// The first expression takes exponential time. The second keeps a frame per letter, up to gigabytes
// with PCRE2's limits.
TEST(TokenizerFile, EndlessRegexIsStopped) {
  for (const auto& [expression, num_letters, limit] :
       {std::tuple{"(a+)+$", size_t{5'000}, "match limit exceeded"},
        std::tuple{"(?:a|b)+(?=c)", size_t{4'000'000}, "heap limit exceeded"}}) {
    json file = make_small_json();
    file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}};
    const Tokenizer tokenizer = parse_tokenizer(file);
    try {
      tokenizer.encode(std::string(num_letters, 'a') + "b");
      ADD_FAILURE() << expression << " was matched";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("regular expression failed on a text of"), HasSubstr(limit)));
    }
  }
}

}  // namespace
}  // namespace vlmtrain::text
