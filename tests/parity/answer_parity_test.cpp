#include <gtest/gtest.h>

#include <map>

#include "parity/capability_record.h"
#include "parity/case.h"
#include "vlmtrain/engine/generation/generate.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::parity {
namespace {

using Ids = std::vector<int64_t>;

/// Greedy answers of transformers to the questions of one case, with or without a LoRA adapter.
struct Answers {
  std::string parity_case, adapter;
  std::vector<nlohmann::json> items;
};

void PrintTo(const Answers& answers, std::ostream* out) {
  *out << answers.parity_case << " " << answers.adapter;
}

/// Reads the answers written by reference/kinds/answers.py.
std::vector<Answers> read_answers() {
  std::map<std::pair<std::string, std::string>, Answers> answers_by_case;
  const auto folder = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/parity/data";
  for (const auto& item : io::read_json(folder / "answers.json")) {
    const auto parity_case = item.at("case").get<std::string>();
    const auto adapter = io::get_or<std::string>(item, "adapter", "", "answers.json");
    auto& answers = answers_by_case[{parity_case, adapter}];
    answers.parity_case = parity_case;
    answers.adapter = adapter;
    answers.items.push_back(item);
  }
  std::vector<Answers> result;
  for (auto& [key, answers] : answers_by_case) result.push_back(std::move(answers));
  return result;
}

size_t count_marks(const std::string& text, std::string_view mark) {
  size_t num_marks = 0;
  for (auto position = text.find(mark); position != std::string::npos; position = text.find(mark, position + 1))
    ++num_marks;
  return num_marks;
}

class AnswerParity : public testing::TestWithParam<Answers> {
 protected:
  void SetUp() override { record_capability(case_.checkpoint(), "generate"); }

  std::unique_ptr<models::VisionLanguageModel> load_model() const {
    if (GetParam().adapter.empty()) return case_.load_model();
    const auto folder =
        std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/parity/data/lora" / GetParam().adapter / "adapter";
    auto model = models::build_model(case_.checkpoint(), at::kCPU, at::kFloat, models::read_adapter_settings(folder));
    models::load_weights(*model, case_.checkpoint());
    models::load_adapter(*model, folder);
    return model;
  }

  /// Returns the record's images with the reference's question.
  std::vector<data::Sample> prompts() const {
    const auto processor = case_.load_processor();
    const auto records = case_.records();
    std::vector<data::Sample> samples;
    for (const auto& item : GetParam().items) {
      io::Record record = *std::ranges::find(records, item.at("id").get<std::string>(), &io::Record::id);
      const auto question = item.at("question").get<std::string>();
      record.images.resize(count_marks(question, io::kImagePlaceholder));
      record.videos.resize(count_marks(question, io::kVideoPlaceholder));
      record.turns = {{io::Role::kUser, question}};
      samples.push_back(processor->process_prompt(record, std::ssize(samples)));
    }
    return samples;
  }

  std::vector<Ids> expected_ids() const {
    std::vector<Ids> ids;
    for (const auto& item : GetParam().items) ids.push_back(item.at("new_ids").get<Ids>());
    return ids;
  }

  /// Returns settings for as many tokens as the reference has.
  engine::GenerationSettings make_settings() const { return {.max_new_tokens = std::ssize(expected_ids().front())}; }

  const Case case_{GetParam().parity_case};
};

TEST_P(AnswerParity, PromptsAreEqual) {
  const auto actual = prompts();
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].token_ids, GetParam().items[i].at("prompt_ids").get<Ids>()) << actual[i].id;
  }
}

TEST_P(AnswerParity, GreedyAnswersOfBatchAreEqual) {
  ASSERT_GE(expected_ids().front().size(), 64U);
  EXPECT_EQ(engine::generate(*load_model(), prompts(), make_settings()), expected_ids());
}

TEST_P(AnswerParity, GreedyAnswersWithoutCacheAreEqual) {
  auto options = make_settings();
  options.use_cache = false;
  EXPECT_EQ(engine::generate(*load_model(), prompts(), options), expected_ids());
}

INSTANTIATE_TEST_SUITE_P(Cases, AnswerParity, testing::ValuesIn(read_answers()), [](const auto& instance) {
  const Answers& answers = instance.param;
  return answers.parity_case + (answers.adapter.empty() ? "" : "_lora_" + answers.adapter);
});

}  // namespace
}  // namespace vlmtrain::parity
