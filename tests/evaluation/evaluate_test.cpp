#include "vlmtrain/evaluation/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>

#include "parity/case.h"
#include "planner/user_error.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/evaluation/evaluated_answer.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/memory/allocation_tracking.h"

namespace vlmtrain::evaluation {
namespace {

TEST(EvaluationTest, IsOneJsonLine) {
  EvaluationResult evaluation;
  evaluation.total = {.num_samples = 4,
                      .num_exact_matches = 3,
                      .num_samples_with_loss = 4,
                      .loss_sum = 3,
                      .num_label_tokens = 12,
                      .label_weight = 12};
  evaluation.by_task["count"] = {.num_samples = 2,
                                 .num_exact_matches = 1,
                                 .num_samples_with_loss = 2,
                                 .loss_sum = 2,
                                 .num_label_tokens = 4,
                                 .label_weight = 4};
  evaluation.batch_size = 16;
  evaluation.num_skipped_samples = 1;
  evaluation.closed_question_score.add("yes", "Yes");
  evaluation.open_question_score.add("left lung", "left side");
  EXPECT_EQ(evaluation.to_json(), R"({"loss":0.25,"label_tokens":12,"samples":4,"exact_match":0.75,)"
                                  R"("closed":{"samples":1,"accuracy":1.0},"open":{"samples":1,"exact_match":0.0,)"
                                  R"("recall":0.5,"precision":0.5,"f1":0.5},"skipped":1,"dropped":0,)"
                                  R"("batch_size":16,"oom_splits":0,"seconds":0.0,"by_task":{"count":{"samples":2,)"
                                  R"("exact_match":0.5,"loss":0.5,"label_tokens":4}},"notices":[],"left_out":0})");
}

TEST(EvaluationTest, MasksAreWrittenWhereThereAreSome) {
  EvaluationResult evaluation;
  EXPECT_FALSE(evaluation.make_metrics().total.masks);
  evaluation.masks.add({.iou = 0.5, .dice = 0.75, .hausdorff95 = 4}, "count", "liver");
  evaluation.masks.add({.iou = 0, .dice = 0.25, .hausdorff95 = {}, .is_prediction_empty = true}, "", "");
  const auto json = nlohmann::json::parse(evaluation.to_json())["masks"];
  EXPECT_EQ(
      json.dump(),
      R"({"by_structure":{"liver":{"dice":0.75,"empty_drawn":0,"empty_predictions":0,"empty_truths":0,"hausdorff95":4.0,"iou":0.5,"masks":1}},)"
      R"("by_task":{"count":{"dice":0.75,"empty_drawn":0,"empty_predictions":0,"empty_truths":0,"hausdorff95":4.0,"iou":0.5,"masks":1}},)"
      R"("dice":0.5,"empty_drawn":1,"empty_predictions":1,"empty_truths":0,"hausdorff95":4.0,"iou":0.25,"masks":2})");
  const report::EvaluationMetrics metrics = evaluation.make_metrics();
  EXPECT_EQ(metrics.total.masks.value().dice, 0.5);
  EXPECT_EQ(metrics.mask_metrics_by_structure.at("liver").masks, 1);
  EXPECT_FALSE(evaluation.make_metrics(/*has_values=*/false).total.masks) << "on a virtual GPU";
}

TEST(EvaluationTest, NoSamplesScoreZero) {
  EXPECT_EQ(TaskScore{}.exact_match(), 0);
  EXPECT_EQ(nlohmann::json::parse(EvaluationResult{}.to_json())["by_task"].dump(), "{}");
}

/// A small model, and its answers to four records.
class EvaluateTest : public testing::Test {
 protected:
  EvaluationResult run_evaluation(const EvaluationSettings& settings = {.max_new_tokens = 6}) {
    answers_.clear();
    return evaluate(*model_, *processor_, records_, settings,
                    [this](const EvaluatedAnswer& answer) { answers_.push_back(answer); });
  }

  std::vector<std::string> ids() const {
    std::vector<std::string> ids;
    for (const auto& answer : answers_) ids.push_back(answer.id);
    return ids;
  }

  const parity::Case source_{"mixed_batch"};
  io::InMemoryRecords records_{source_.records()};
  std::vector<EvaluatedAnswer> answers_;

 private:
  const std::unique_ptr<models::VisionLanguageModel> model_ = source_.load_model();
  const std::unique_ptr<models::Processor> processor_ = source_.load_processor();
};

TEST_F(EvaluateTest, ComparesAnswersAndSumsTheLoss) {
  records_[0].task = "yes or no";
  const EvaluationResult full = run_evaluation();
  EXPECT_THAT(ids(), testing::ElementsAre("words", "square", "row", "two"));
  EXPECT_EQ(answers_[2].index, 2);
  EXPECT_EQ(full.total.num_samples, 4);
  EXPECT_EQ(full.total.num_exact_matches, 0);
  EXPECT_EQ(full.by_task.at("yes or no").num_samples, 1);
  EXPECT_EQ(full.by_task.size(), 1U);
  EXPECT_EQ(full.closed_question_score.num_samples + full.open_question_score.num_samples, 4);
  int64_t label_tokens = 0;
  for (const auto& sample : source_.samples()) label_tokens += data::get_sample_shape(sample).label_tokens;
  EXPECT_EQ(full.total.num_label_tokens, label_tokens);
  const EvaluationResult single_batches = run_evaluation({.batch_size = 1, .max_new_tokens = 6});
  EXPECT_NEAR(single_batches.total.loss(), full.total.loss(), 1e-6 * full.total.loss())
      << "a mean over labels, not over batches";
  EXPECT_EQ(single_batches.total.num_label_tokens, full.total.num_label_tokens);
}

TEST_F(EvaluateTest, IgnoresSurroundingWhiteSpace) {
  run_evaluation();
  for (int64_t i = 0; i < records_.size(); ++i) {
    records_[i].turns.back().text = " \n" + answers_[static_cast<size_t>(i)].prediction + "\t ";
  }
  const std::string prediction = answers_[0].prediction;
  ASSERT_FALSE(prediction.empty());
  EXPECT_EQ(run_evaluation().total.num_exact_matches, 4);
  EXPECT_EQ(answers_[0].expected, prediction);
  records_[0].turns.back().text = prediction + " and more";
  EXPECT_EQ(run_evaluation().total.num_exact_matches, 3);
}

TEST_F(EvaluateTest, MetricsOfAnswersAreSummedByTask) {
  const EvaluationSettings settings{.max_new_tokens = 6,
                                    .metrics = {.metrics = {Metric::kAnls, Metric::kWer, Metric::kBoxIou}}};
  run_evaluation();
  records_[0].turns.back().text = answers_[0].prediction;
  records_[0].task = "copied";
  const EvaluationResult result = run_evaluation(settings);
  ASSERT_EQ(answers_[0].metric_sums.size(), 3U);
  EXPECT_EQ(answers_[0].metric_sums.at(Metric::kAnls).value(), 1);
  MetricSums sums;
  for (const auto& answer : answers_) add_metric_sums(sums, answer.metric_sums);
  EXPECT_EQ(get_metric_values(result.total.metric_sums), get_metric_values(sums));
  const auto json = nlohmann::json::parse(result.to_json());
  EXPECT_EQ(json["by_task"]["copied"]["metrics"].dump(), R"({"anls":1.0,"box_iou":null,"wer":0.0})");
  EXPECT_EQ(json["metrics"]["wer"], sums.at(Metric::kWer).value().value());
  EXPECT_EQ(result.make_metrics().tasks.at("copied").metrics.at("anls"), 1);
  EXPECT_TRUE(result.make_metrics(/*has_values=*/false).total.metrics.empty()) << "on a virtual GPU";
  EXPECT_FALSE(nlohmann::json::parse(run_evaluation().to_json()).contains("metrics")) << "none are configured";
}

TEST_F(EvaluateTest, AnswersWithBoxesAreScored) {
  std::vector<io::Record> records = source_.records();
  const auto record =
      std::ranges::find_if(records, [](const io::Record& candidate) { return !candidate.images.empty(); });
  ASSERT_NE(record, records.end());
  record->turns = {{io::Role::kUser, "Where?"}, {io::Role::kAssistant, "<bbox>"}};
  for (size_t i = 0; i < record->images.size(); ++i) record->turns[0].text.insert(0, "<image>");
  record->objects = {{.turn_index = 1, .range = {0, 6}, .coordinates = {0.25, 0.5, 0.75, 1}}};
  record->objects[0].unit = io::CoordinateUnit::kNormalized1;
  records_ = io::InMemoryRecords({*record});
  const EvaluationResult evaluation = run_evaluation();
  ASSERT_EQ(answers_.size(), 1);
  EXPECT_EQ(answers_[0].expected, "[250, 500, 750, 1000]");
  ASSERT_TRUE(answers_[0].boxes);
  ASSERT_EQ(answers_[0].boxes->true_boxes.size(), 1);
  const image::ImageSize size = image::read_image_size(record->images[0]);
  EXPECT_NEAR(answers_[0].boxes->true_boxes[0].top_left.x, 0.25 * static_cast<double>(size.width), 1e-9);
  EXPECT_NEAR(answers_[0].boxes->true_boxes[0].bottom_right.y, static_cast<double>(size.height), 1e-9);
  EXPECT_EQ(evaluation.total.metric_sums.at(Metric::kBoxIou).weight, 1);
  EXPECT_EQ(evaluation.total.metric_sums.at(Metric::kBoxAccuracy).weight, 1);
}

TEST_F(EvaluateTest, ARecordWithoutAnswerIsNotCompared) {
  records_[3].turns.pop_back();  // its first question keeps an answer
  EXPECT_EQ(run_evaluation().total.num_samples, 3);
  EXPECT_THAT(ids(), testing::ElementsAre("words", "square", "row"));
}

TEST_F(EvaluateTest, BadSamplesAreSkippedWhereRequested) {
  records_[1].images = {"nowhere.png"};
  planner::get_usage_error([this] { run_evaluation(); }, ExitCode::kBadData);
  const EvaluationSettings skip_settings{.max_new_tokens = 6, .on_bad_sample = data::BadSamplePolicy::kSkip};
  EXPECT_EQ(run_evaluation(skip_settings).num_skipped_samples, 1);
  EXPECT_THAT(ids(), testing::ElementsAre("words", "row", "two"));
  records_ = io::InMemoryRecords({records_[1]});
  EXPECT_THAT(planner::get_usage_error([&] { run_evaluation(skip_settings); }, ExitCode::kBadData),
              testing::HasSubstr("none of the 1 samples can be used"));
}

/// Evaluations that run out of memory, with their events.
class EvaluationOutOfMemoryTest : public EvaluateTest {
 protected:
  EvaluationOutOfMemoryTest() {
    settings_.on_event = [this](report::EventKind kind, const std::string& message, std::vector<std::string> ids) {
      events_.push_back({.kind = kind, .message = message, .ids = std::move(ids)});
    };
  }

  /// Runs with the faults after a run that loads what is loaded once.
  EvaluationResult run_with_faults(memory::AllocationFaults faults) {
    events_.clear();
    allocations_.arm(faults);
    const auto result = run_evaluation(settings_);
    num_allocations_ = allocations_.num_allocations();
    peak_bytes_ = allocations_.peak_bytes();
    allocations_.disarm();
    return result;
  }

  memory::AllocationFaultInjector allocations_;
  int64_t num_allocations_ = 0, peak_bytes_ = 0;  // of the newest evaluation
  EvaluationSettings settings_{.batch_size = 4, .max_new_tokens = 6};
  std::vector<report::RunEvent> events_;
};

TEST_F(EvaluationOutOfMemoryTest, AnAllocationFailureChangesNoScore) {
  const EvaluationResult full = run_with_faults({});
  const auto expected = answers_;
  const int64_t num_allocations = num_allocations_;
  ASSERT_GT(num_allocations, 100);
  constexpr int64_t kFaults = 40;
  for (int64_t i = 0; i < kFaults; ++i) {
    SCOPED_TRACE(i);
    const EvaluationResult split = run_with_faults({.failing_allocation_index = i * num_allocations / kFaults});
    EXPECT_EQ(split.num_oom_splits, 1);
    EXPECT_EQ(split.batch_size, 2);
    EXPECT_EQ(split.num_dropped_samples, 0);
    EXPECT_NEAR(split.total.loss(), full.total.loss(), 1e-6 * full.total.loss());
    EXPECT_EQ(split.total.num_label_tokens, full.total.num_label_tokens);
    ASSERT_EQ(answers_.size(), expected.size()) << "each sample is counted once";
    for (size_t k = 0; k < expected.size(); ++k) EXPECT_EQ(answers_[k].prediction, expected[k].prediction);
    ASSERT_EQ(events_.size(), 1U);
    EXPECT_EQ(events_[0].kind, report::EventKind::kOomSplit);
    EXPECT_THAT(events_[0].message, testing::HasSubstr("it continues with batches of 2"));
  }
}

TEST_F(EvaluationOutOfMemoryTest, SamplesThatDoNotFitAreDroppedAndReported) {
  run_with_faults({});
  const int64_t peak_bytes = peak_bytes_;
  settings_.batch_size = 1;
  std::set<std::string> dropped;
  bool is_partial = false;
  for (int64_t share = 9; share >= 0; --share) {
    const EvaluationResult result = run_with_faults({.limit_bytes = peak_bytes * share / 10});
    EXPECT_EQ(result.total.num_samples_with_loss + result.num_dropped_samples, 4);
    if (result.num_dropped_samples == 0) continue;
    is_partial |= result.num_dropped_samples < 4;
    ASSERT_FALSE(events_.empty());
    EXPECT_EQ(events_.back().kind, report::EventKind::kAnomaly);
    EXPECT_EQ(std::ssize(events_.back().ids), result.num_dropped_samples);
    EXPECT_THAT(events_.back().message, testing::HasSubstr(events_.back().ids.front()));
  }
  EXPECT_TRUE(is_partial) << "the small samples fit where the large ones do not";
  EXPECT_EQ(events_.back().ids.size(), 4U) << "nothing fits into nothing, and that is no end";
}

}  // namespace
}  // namespace vlmtrain::evaluation
