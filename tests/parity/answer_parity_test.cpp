#include <gtest/gtest.h>

#include <map>

#include "parity/case.h"
#include "parity/evidence.h"
#include "vlmtrain/engine/generate.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::parity {
namespace {

using Ids = std::vector<int64_t>;

/// Greedy answers of transformers to the questions of one case, with a LoRA adapter or without.
struct Answers {
  std::string parity_case, adapter;
  std::vector<nlohmann::json> items;
};

void PrintTo(const Answers& answers, std::ostream* out) {
  *out << answers.parity_case << " " << answers.adapter;
}

/// reference/make_answers.py
std::vector<Answers> all_answers() {
  std::map<std::pair<std::string, std::string>, Answers> found;
  const auto folder = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/parity/data";
  for (const auto& item : io::read_json(folder / "answers.json")) {
    const auto parity_case = item.at("case").get<std::string>();
    const auto adapter = io::get_or<std::string>(item, "adapter", "", "answers.json");
    auto& answers = found[{parity_case, adapter}];
    answers.parity_case = parity_case;
    answers.adapter = adapter;
    answers.items.push_back(item);
  }
  std::vector<Answers> all;
  for (auto& [place, answers] : found) all.push_back(std::move(answers));
  return all;
}

size_t count(const std::string& text, std::string_view mark) {
  size_t found = 0;
  for (auto at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) ++found;
  return found;
}

class AnswerParity : public testing::TestWithParam<Answers> {
 protected:
  void SetUp() override { shows(case_.checkpoint(), "generate"); }

  std::unique_ptr<models::VisionLanguageModel> load_model() const {
    if (GetParam().adapter.empty()) return case_.load_model();
    const auto folder =
        std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/parity/data/lora" / GetParam().adapter / "adapter";
    auto model = models::build_model(case_.checkpoint(), at::kCPU, at::kFloat, models::read_adapter_settings(folder));
    models::load_weights(*model, case_.checkpoint());
    models::load_adapter(*model, folder);
    return model;
  }

  /// Of the record's pictures and the question that was asked.
  std::vector<data::Sample> prompts() const {
    const auto processor = case_.load_processor();
    const auto records = case_.records();
    std::vector<data::Sample> made;
    for (const auto& item : GetParam().items) {
      io::Record record = *std::ranges::find(records, item.at("id").get<std::string>(), &io::Record::id);
      const auto question = item.at("question").get<std::string>();
      record.images.resize(count(question, io::kImageMark));
      record.videos.resize(count(question, io::kVideoMark));
      record.turns = {{io::Role::kUser, question}};
      made.push_back(processor->process_prompt(record, std::ssize(made)));
    }
    return made;
  }

  std::vector<Ids> wanted() const {
    std::vector<Ids> ids;
    for (const auto& item : GetParam().items) ids.push_back(item.at("new_ids").get<Ids>());
    return ids;
  }

  /// As many tokens as the reference has.
  engine::GenerateSettings to_their_length() const { return {.max_new_tokens = std::ssize(wanted().front())}; }

  const Case case_{GetParam().parity_case};
};

TEST_P(AnswerParity, PromptsAreEqual) {
  const auto found = prompts();
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].token_ids, GetParam().items[i].at("prompt_ids").get<Ids>()) << found[i].id;
  }
}

TEST_P(AnswerParity, GreedyAnswersOfABatchAreEqual) {
  ASSERT_GE(wanted().front().size(), 64U);
  EXPECT_EQ(engine::generate(*load_model(), prompts(), to_their_length()), wanted());
}

TEST_P(AnswerParity, GreedyAnswersWithoutCacheAreEqual) {
  auto options = to_their_length();
  options.use_cache = false;
  EXPECT_EQ(engine::generate(*load_model(), prompts(), options), wanted());
}

INSTANTIATE_TEST_SUITE_P(Cases, AnswerParity, testing::ValuesIn(all_answers()), [](const auto& instance) {
  const Answers& answers = instance.param;
  return answers.parity_case + (answers.adapter.empty() ? "" : "_lora_" + answers.adapter);
});

}  // namespace
}  // namespace vlmtrain::parity
