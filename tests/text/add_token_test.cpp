#include "vlmtrain/text/add_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "vlmtrain/base/error.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {
namespace {

using nlohmann::json;

constexpr const char* kModel =
    R"("model": {"type": "BPE", "vocab": {"a": 0, "\"added_tokens\":": 1, "<old>": 2}, "merges": []})";

std::string file_with(const std::string& added_tokens) {
  return "{\n" + added_tokens + kModel + "}\n";
}

void expect_token(const std::string& before, int64_t id) {
  const auto [after, found] = with_token(before, "<SEG>", "tokenizer.json");
  EXPECT_EQ(found, id);
  const auto tokenizer = Tokenizer::from_json(after, "tokenizer.json");
  EXPECT_EQ(tokenizer.encode("a<SEG>a").ids, (std::vector<int64_t>{0, id, 0}));
  EXPECT_EQ(tokenizer.decode(std::vector<int64_t>{id}, /*skip_special_tokens=*/true), "<SEG>");
  EXPECT_NE(after.find(kModel), std::string::npos) << "the rest is as it was";
  EXPECT_EQ(with_token(after, "<SEG>", "tokenizer.json").json, after);
}

TEST(WithToken, StandsBehindAllOthers) {
  expect_token(file_with(R"("added_tokens": [{"id": 3, "content": "<x>]"}],)"), 4);
  expect_token(file_with("\"added_tokens\" : [\n    {\"id\": 3,\n \"content\": \"<x>\"}\n  ],\n"), 4);
  expect_token(file_with(R"("added_tokens": [ ], )"), 3);
  expect_token(file_with(""), 3);
}

TEST(WithToken, KeepsItsIdInTheVocabulary) {
  const auto [after, id] = with_token(file_with(R"("added_tokens": [],)"), "<old>", "tokenizer.json");
  EXPECT_EQ(id, 2);
  EXPECT_EQ(Tokenizer::from_json(after, "tokenizer.json").encode("a<old>").ids, (std::vector<int64_t>{0, 2}));
}

TEST(WithToken, RefusesWhatIsNoTokenizer) {
  EXPECT_THROW(with_token("{\"model\"", "<SEG>", "tokenizer.json"), UserError);
}

}  // namespace
}  // namespace vlmtrain::text
