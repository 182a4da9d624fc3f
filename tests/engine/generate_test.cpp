#include "vlmtrain/engine/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "parity/case.h"

namespace vlmtrain::engine {
namespace {

/// Prompts of different lengths: one without an image, others with one or two.
class Generate : public testing::Test {
 protected:
  std::vector<data::Sample> prompts() const {
    const auto processor = case_.load_processor();
    const auto records = case_.records();
    std::vector<data::Sample> made;
    for (size_t i = 0; i < records.size(); ++i)
      made.push_back(processor->process_prompt(records[i], static_cast<int64_t>(i)));
    return made;
  }

  const parity::Case case_{"mixed_batch"};
  const std::unique_ptr<models::VisionLanguageModel> model_ = case_.load_model();
};

TEST_F(Generate, AnswersAreAsLongAsAllowedWithoutAnEnd) {
  for (const auto& answer : generate(*model_, prompts(), {.max_new_tokens = 5})) EXPECT_EQ(answer.size(), 5U);
  for (const auto& answer : generate(*model_, prompts(), {.max_new_tokens = 0})) EXPECT_TRUE(answer.empty());
  EXPECT_TRUE(generate(*model_, {}, {}).empty());
}

TEST_F(Generate, BatchGivesTheAnswersOfEachPromptAlone) {
  const auto together = generate(*model_, prompts(), {.max_new_tokens = 10});
  std::set<std::vector<int64_t>> different(together.begin(), together.end());
  EXPECT_EQ(different.size(), together.size()) << "the prompts should have different answers";
  const auto all = prompts();
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(generate(*model_, {all[i]}, {.max_new_tokens = 10}).at(0), together[i]) << all[i].id;
}

TEST_F(Generate, StopsEachAnswerBeforeItsEndOfTurn) {
  const auto endless = generate(*model_, prompts(), {.max_new_tokens = 10});
  const int64_t end = endless[1][4];
  auto wanted = endless;
  for (auto& answer : wanted) answer.erase(std::ranges::find(answer, end), answer.end());
  EXPECT_LE(wanted[1].size(), 4U);
  EXPECT_EQ(generate(*model_, prompts(), {.max_new_tokens = 10, .end_token_ids = {end}}), wanted);
}

TEST_F(Generate, AnAnswerMayBeEmpty) {
  const auto first = generate(*model_, prompts(), {.max_new_tokens = 1}).at(2).at(0);
  EXPECT_TRUE(generate(*model_, prompts(), {.max_new_tokens = 6, .end_token_ids = {first}}).at(2).empty());
}

}  // namespace
}  // namespace vlmtrain::engine
