// Compares each kind of tokenizer with Hugging Face's library on the golden strings.
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

Golden load_golden(const std::string& tokenizer_name) {
  return {Tokenizer::from_file(get_data_path(tokenizer_name + ".tokenizer.json")),
          read_json_data(tokenizer_name + ".golden.json")};
}

/// Returns the offset of the character that contains each offset, as Hugging Face reports it.
std::vector<uint32_t> to_character_starts(const std::string& text, std::vector<uint32_t> starts) {
  for (uint32_t& start : starts) {
    while (start > 0 && start < text.size() && (static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U) --start;
  }
  return starts;
}

class TokenizerGolden : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, IdsMatch) {
  const Golden golden = load_golden(GetParam());
  ASSERT_GT(golden.cases.size(), 100U);
  for (const auto& golden_case : golden.cases) {
    const auto text = golden_case["text"].get<std::string>();
    const Ids expected_ids = golden_case["ids"].get<Ids>();
    EXPECT_EQ(golden.tokenizer.encode(text).ids, expected_ids) << golden_case["text"];
    const Ids expected_ids_with_special =
        golden_case.contains("ids_with_special") ? golden_case["ids_with_special"].get<Ids>() : expected_ids;
    EXPECT_EQ(golden.tokenizer.encode(text, true).ids, expected_ids_with_special) << golden_case["text"];
  }
}

TEST_P(TokenizerGolden, OffsetsMatch) {
  const Golden golden = load_golden(GetParam());
  for (const auto& golden_case : golden.cases) {
    if (!golden_case.contains("starts")) continue;  // where NFC reorders characters
    const auto text = golden_case["text"].get<std::string>();
    EXPECT_EQ(to_character_starts(text, golden.tokenizer.encode(text).starts),
              golden_case["starts"].get<std::vector<uint32_t>>())
        << golden_case["text"];
  }
}

TEST_P(TokenizerGolden, DecodedTextMatches) {
  const Golden golden = load_golden(GetParam());
  for (const auto& golden_case : golden.cases) {
    const Ids ids = golden_case["ids"].get<Ids>();
    const auto decoded = golden_case["decoded"].get<std::string>();
    EXPECT_EQ(golden.tokenizer.decode(ids, false), decoded) << golden_case["text"];
    EXPECT_EQ(golden.tokenizer.decode(ids, true), golden_case.value("decoded_without_special", decoded))
        << golden_case["text"];
  }
}

TEST_P(TokenizerGolden, EncodeIsThreadSafe) {
  const Golden golden = load_golden(GetParam());
  constexpr int kThreads = 4;
  std::vector<std::vector<Ids>> results(kThreads);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&golden, &result] {
      for (const auto& golden_case : golden.cases) {
        result.push_back(golden.tokenizer.encode(golden_case["text"].get_ref<const std::string&>()).ids);
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
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace vlmtrain::text
