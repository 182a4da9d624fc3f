// Every kind of tokenizer against Hugging Face's library on every golden string.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "text/test_data.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {
namespace {

using Ids = std::vector<int64_t>;

struct Golden {
  Tokenizer tokenizer;
  nlohmann::json cases;
};

Golden load(const std::string& kind) {
  return {Tokenizer::from_file(data_path(kind + ".tokenizer.json")), read_data(kind + ".golden.json")};
}

/// Offsets of the first byte of the character that each offset lies in, as Hugging Face counts.
std::vector<uint32_t> to_character_starts(const std::string& text, std::vector<uint32_t> starts) {
  for (uint32_t& start : starts) {
    while (start > 0 && start < text.size() && (static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U) --start;
  }
  return starts;
}

class TokenizerGolden : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, GivesTheSameIds) {
  const Golden golden = load(GetParam());
  ASSERT_GT(golden.cases.size(), 100U);
  for (const auto& wanted : golden.cases) {
    const auto text = wanted["text"].get<std::string>();
    const Ids plain = wanted["ids"].get<Ids>();
    EXPECT_EQ(golden.tokenizer.encode(text).ids, plain) << wanted["text"];
    const Ids with_special = wanted.contains("ids_with_special") ? wanted["ids_with_special"].get<Ids>() : plain;
    EXPECT_EQ(golden.tokenizer.encode(text, true).ids, with_special) << wanted["text"];
  }
}

TEST_P(TokenizerGolden, GivesTheSameOffsets) {
  const Golden golden = load(GetParam());
  for (const auto& wanted : golden.cases) {
    if (!wanted.contains("starts")) continue;  // where NFC reorders characters
    const auto text = wanted["text"].get<std::string>();
    EXPECT_EQ(to_character_starts(text, golden.tokenizer.encode(text).starts),
              wanted["starts"].get<std::vector<uint32_t>>())
        << wanted["text"];
  }
}

TEST_P(TokenizerGolden, DecodesTheSame) {
  const Golden golden = load(GetParam());
  for (const auto& wanted : golden.cases) {
    const Ids ids = wanted["ids"].get<Ids>();
    const auto decoded = wanted["decoded"].get<std::string>();
    EXPECT_EQ(golden.tokenizer.decode(ids, false), decoded) << wanted["text"];
    EXPECT_EQ(golden.tokenizer.decode(ids, true), wanted.value("decoded_without_special", decoded)) << wanted["text"];
  }
}

TEST_P(TokenizerGolden, GivesTheSameFromManyThreads) {
  const Golden golden = load(GetParam());
  constexpr int kThreads = 4;
  std::vector<std::vector<Ids>> results(kThreads);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&golden, &result] {
      for (const auto& wanted : golden.cases) {
        result.push_back(golden.tokenizer.encode(wanted["text"].get_ref<const std::string&>()).ids);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    for (size_t i = 0; i < result.size(); ++i) EXPECT_EQ(result[i], golden.cases[i]["ids"].get<Ids>());
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGolden,
                         testing::Values("gpt2", "smollm2", "qwen2", "llama3", "llama2", "metaspace"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace vlmtrain::text
