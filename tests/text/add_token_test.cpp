#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "vlmtrain/base/error.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {
namespace {

using nlohmann::json;

constexpr const char* kModelSection =
    R"("model": {"type": "BPE", "vocab": {"a": 0, "\"added_tokens\":": 1, "<old>": 2}, "merges": []})";

std::string make_tokenizer_json(const std::string& added_tokens) {
  return "{\n" + added_tokens + kModelSection + "}\n";
}

void expect_added_token(const std::string& original, int64_t id) {
  const auto [edited, token_id] = add_token(original, "<SEG>", "tokenizer.json");
  EXPECT_EQ(token_id, id);
  const auto tokenizer = Tokenizer::from_json(edited, "tokenizer.json");
  EXPECT_EQ(tokenizer.encode("a<SEG>a").ids, (std::vector<int64_t>{0, id, 0}));
  EXPECT_EQ(tokenizer.decode(std::vector<int64_t>{id}, /*skip_special_tokens=*/true), "<SEG>");
  EXPECT_NE(edited.find(kModelSection), std::string::npos) << "the rest is unchanged";
  EXPECT_EQ(add_token(edited, "<SEG>", "tokenizer.json").json, edited);
}

TEST(AddToken, GetsTheNextId) {
  expect_added_token(make_tokenizer_json(R"("added_tokens": [{"id": 3, "content": "<x>]"}],)"), 4);
  expect_added_token(make_tokenizer_json("\"added_tokens\" : [\n    {\"id\": 3,\n \"content\": \"<x>\"}\n  ],\n"), 4);
  expect_added_token(make_tokenizer_json(R"("added_tokens": [ ], )"), 3);
  expect_added_token(make_tokenizer_json(""), 3);
}

TEST(AddToken, KeepsItsVocabularyId) {
  const auto [edited, id] = add_token(make_tokenizer_json(R"("added_tokens": [],)"), "<old>", "tokenizer.json");
  EXPECT_EQ(id, 2);
  EXPECT_EQ(Tokenizer::from_json(edited, "tokenizer.json").encode("a<old>").ids, (std::vector<int64_t>{0, 2}));
}

TEST(AddToken, RejectsInvalidTokenizerJson) {
  EXPECT_THROW(add_token("{\"model\"", "<SEG>", "tokenizer.json"), UserError);
}

}  // namespace
}  // namespace vlmtrain::text
