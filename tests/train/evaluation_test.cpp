#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "parity/case.h"
#include "planner/user_error.h"
#include "vlmtrain/data/shape.h"
#include "vlmtrain/train/evaluate.h"
#include "vlmtrain/train/trainer.h"

namespace vlmtrain::train {
namespace {

TEST(EvaluationTest, IsOneLineOfJson) {
  Evaluation evaluation;
  evaluation.total = {.samples = 4, .exact = 3, .with_loss = 4, .loss_sum = 3, .label_tokens = 12};
  evaluation.by_task["count"] = {.samples = 2, .exact = 1, .with_loss = 2, .loss_sum = 2, .label_tokens = 4};
  evaluation.batch_size = 16;
  evaluation.skipped = 1;
  evaluation.closed.add("yes", "Yes");
  evaluation.open.add("left lung", "left side");
  EXPECT_EQ(evaluation.to_json(), R"({"loss":0.25,"label_tokens":12,"samples":4,"exact_match":0.75,)"
                                  R"("closed":{"samples":1,"accuracy":1.0},"open":{"samples":1,"exact_match":0.0,)"
                                  R"("recall":0.5,"precision":0.5,"f1":0.5},"skipped":1,"left_out":0,)"
                                  R"("batch_size":16,"oom_splits":0,"seconds":0.0,"by_task":{"count":{"samples":2,)"
                                  R"("exact_match":0.5,"loss":0.5,"label_tokens":4}}})");
}

TEST(EvaluationTest, NoSampleIsNoMatch) {
  EXPECT_EQ(TaskScore{}.exact_match(), 0);
  EXPECT_EQ(nlohmann::json::parse(Evaluation{}.to_json())["by_task"].dump(), "{}");
}

TEST(TrainingSummaryTest, ARunThatDidNoStepHasNoLoss) {
  TrainingSummary summary;
  summary.steps = 3;
  summary.checkpoint = "run/checkpoints/step-3";
  EXPECT_EQ(summary.to_json(),
            R"({"stopped":false,"steps":3,"last_loss":null,"checkpoint":"run/checkpoints/step-3",)"
            R"("reserved_peak_bytes":0,"planned_peak_bytes":null,"skipped_steps":0,"callback_seconds":0.0,)"
            R"("early_stopped":false,"best_metric":null,"best_step":null,"best_value":null,"best_checkpoint":null,)"
            R"("last_evaluation":null})");
  summary.last_loss = 1.5;
  EXPECT_EQ(nlohmann::json::parse(summary.to_json())["last_loss"], 1.5);
}

TEST(TrainingSummaryTest, ARunOnAGpuTellsItsPeakBesideThePlannedOne) {
  TrainingSummary summary;
  summary.reserved_peak_bytes = 5'000'000'000;
  summary.planned_peak_bytes = 5'100'000'000;
  const auto json = nlohmann::json::parse(summary.to_json());
  EXPECT_EQ(json["reserved_peak_bytes"], 5'000'000'000);
  EXPECT_EQ(json["planned_peak_bytes"], 5'100'000'000);
  EXPECT_TRUE(json["checkpoint"].is_null()) << "on a virtual card there is none";
}

/// A small model, and what it answers to four records.
class EvaluateTest : public testing::Test {
 protected:
  Evaluation evaluation(const EvaluationSettings& settings = {.max_new_tokens = 6}) {
    answers_.clear();
    return evaluate(*model_, *processor_, records_, settings,
                    [this](const Answer& answer) { answers_.push_back(answer); });
  }

  std::vector<std::string> ids() const {
    std::vector<std::string> ids;
    for (const auto& answer : answers_) ids.push_back(answer.id);
    return ids;
  }

  const parity::Case source_{"mixed_batch"};
  std::vector<io::Record> records_ = source_.records();
  std::vector<Answer> answers_;

 private:
  const std::unique_ptr<models::VisionLanguageModel> model_ = source_.load_model();
  const std::unique_ptr<models::Processor> processor_ = source_.load_processor();
};

TEST_F(EvaluateTest, ComparesEachAnswerAndSumsUpTheLoss) {
  records_[0].task = "yes or no";
  const Evaluation whole = evaluation();
  EXPECT_THAT(ids(), testing::ElementsAre("words", "square", "row", "two"));
  EXPECT_EQ(whole.total.samples, 4);
  EXPECT_EQ(whole.total.exact, 0);
  EXPECT_EQ(whole.by_task.at("yes or no").samples, 1);
  EXPECT_EQ(whole.by_task.size(), 1U);
  EXPECT_EQ(whole.closed.samples + whole.open.samples, 4);
  int64_t label_tokens = 0;
  for (const auto& sample : source_.samples()) label_tokens += data::shape_of(sample).label_tokens;
  EXPECT_EQ(whole.total.label_tokens, label_tokens);
  const Evaluation singly = evaluation({.batch_size = 1, .max_new_tokens = 6});
  EXPECT_NEAR(singly.total.loss(), whole.total.loss(), 1e-6 * whole.total.loss())
      << "a mean over labels, not over batches";
  EXPECT_EQ(singly.total.label_tokens, whole.total.label_tokens);
}

TEST_F(EvaluateTest, IsExactButForWhiteSpaceAtTheEnds) {
  evaluation();
  for (size_t i = 0; i < records_.size(); ++i) records_[i].turns.back().text = " \n" + answers_[i].given + "\t ";
  const std::string given = answers_[0].given;
  ASSERT_FALSE(given.empty());
  EXPECT_EQ(evaluation().total.exact, 4);
  EXPECT_EQ(answers_[0].expected, given);
  records_[0].turns.back().text = given + " and more";
  EXPECT_EQ(evaluation().total.exact, 3);
}

TEST_F(EvaluateTest, ARecordWithoutALastAnswerIsNotCompared) {
  records_[3].turns.pop_back();  // its first question keeps an answer
  EXPECT_EQ(evaluation().total.samples, 3);
  EXPECT_THAT(ids(), testing::ElementsAre("words", "square", "row"));
}

TEST_F(EvaluateTest, BadSamplesAreLeftOutWhereThatIsAsked) {
  records_[1].images = {"nowhere.png"};
  planner::message_of([this] { evaluation(); }, ExitCode::kBadData);
  const EvaluationSettings skip{.max_new_tokens = 6, .on_bad_sample = data::BadSamplePolicy::kSkip};
  EXPECT_EQ(evaluation(skip).skipped, 1);
  EXPECT_THAT(ids(), testing::ElementsAre("words", "row", "two"));
  records_ = {records_[1]};
  EXPECT_THAT(planner::message_of([&] { evaluation(skip); }, ExitCode::kBadData),
              testing::HasSubstr("none of the 1 samples can be used"));
}

}  // namespace
}  // namespace vlmtrain::train
