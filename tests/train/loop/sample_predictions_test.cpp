#include "train/loop/sample_predictions.h"

#include <gmock/gmock.h>

#include <map>

#include "train/small_run.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

/// Three steps with a checkpoint each, and four samples to answer.
class SamplePredictionsTest : public SmallRunTest {
 protected:
  /// Too short for a second answer.
  static constexpr double kTinyShare = 1e-9;

  SamplePredictionsTest() {
    config_.output.num_sample_predictions = 4;
    config_.output.max_prediction_time_share = 1;
    config_.output.save_steps = 1;
    config_.output.save_total_limit = kSteps;
    config_.output.write_report = config_.output.write_tensorboard = false;
  }

  /// Returns by step the ids in the order of their answers.
  std::map<int64_t, std::vector<std::string>> list_answers() const {
    std::map<int64_t, std::vector<std::string>> ids;
    for (const auto& answer : read_json_lines("predictions.jsonl")) ids[answer["step"]].push_back(answer["id"]);
    return ids;
  }
  std::vector<std::string> list_events(const std::string& kind) const {
    std::vector<std::string> messages;
    for (const auto& event : read_json_lines("events.jsonl")) {
      if (event["kind"] == kind) messages.push_back(event["message"]);
    }
    return messages;
  }
  void remove_checkpoint(int64_t step) const {
    ASSERT_GT(fs::remove_all(run_folder() / fmt::format("checkpoints/step-{}", step)), 0U);
  }
  /// Simulates a kill before the answers of a step, or after `num_kept` of them.
  void remove_answers_after_step(int64_t step, int64_t num_kept = 0) const {
    std::string kept_lines;
    for (const auto& answer : read_json_lines("predictions.jsonl")) {
      if (answer["step"] > step && num_kept-- <= 0) continue;
      kept_lines += answer.dump() + "\n";
    }
    std::ofstream(run_folder() / "predictions.jsonl") << kept_lines;
  }
};

TEST_F(SamplePredictionsTest, WithoutALimitAllSamplesAreAnswered) {
  run_training();
  const auto ids = list_answers();
  ASSERT_THAT(ids, SizeIs(3));
  for (const auto& [step, step_ids] : ids) {
    EXPECT_THAT(step_ids, testing::UnorderedElementsAre("words", "square", "row", "two"));
  }
  EXPECT_THAT(list_events("fewer_answers"), IsEmpty());
}

TEST_F(SamplePredictionsTest, SamplesTakeTurnsWithinTheTimeShare) {
  run_training();
  const auto order = list_answers().at(1);
  config_.output.max_prediction_time_share = kTinyShare;
  config_.output.dir = folder() / "fewer";
  run_training();
  const auto ids = list_answers();
  EXPECT_THAT(ids, ElementsAre(testing::Pair(1, ElementsAre(order[0])), testing::Pair(3, ElementsAre(order[1]))))
      << "the first shows what one takes, the run's end always has one";
  const auto messages = list_events("fewer_answers");
  ASSERT_THAT(messages, SizeIs(1)) << "once";
  EXPECT_THAT(messages[0], HasSubstr("step 1: only 1 of the 4 sample answers"));
  EXPECT_THAT(messages[0], HasSubstr("increase output.sample_predictions_share (now 1e-09)"));
}

TEST_F(SamplePredictionsTest, RotationContinuesAfterResuming) {
  run_training();
  const auto order = list_answers().at(1);
  config_.output.max_prediction_time_share = kTinyShare;
  config_.output.dir = folder() / "fewer";
  run_training();
  remove_checkpoint(3);
  run_training();
  EXPECT_THAT(list_answers(),
              ElementsAre(testing::Pair(1, ElementsAre(order[0])), testing::Pair(2, ElementsAre(order[1])),
                          testing::Pair(3, ElementsAre(order[2]))))
      << "the answers of step 2 are generated later, and their time is measured again";
}

TEST_F(SamplePredictionsTest, ZeroShareAnswersOneAtTheEnd) {
  config_.output.max_prediction_time_share = 0;
  run_training();
  const auto ids = list_answers();
  ASSERT_THAT(ids, SizeIs(1));
  EXPECT_THAT(ids.at(3), SizeIs(1));
}

TEST_F(SamplePredictionsTest, AnswersMissingSamplesOnResume) {
  run_training();
  const auto uninterrupted = read_json_lines("predictions.jsonl");
  remove_checkpoint(3);
  remove_answers_after_step(1);
  run_training();
  EXPECT_EQ(read_json_lines("predictions.jsonl"), uninterrupted) << "with the answers of the model as it was then";
}

TEST_F(SamplePredictionsTest, DoesNotRepeatAPartialCheckpoint) {
  run_training();
  remove_checkpoint(3);
  remove_answers_after_step(1, /*left=*/1);
  run_training();
  EXPECT_THAT(list_answers().at(2), SizeIs(1));
  EXPECT_THAT(list_answers().at(3), SizeIs(4));
}

TEST_F(SamplePredictionsTest, AnswersTheLastCheckpointOnResume) {
  run_training();
  const auto uninterrupted = read_json_lines("predictions.jsonl");
  remove_answers_after_step(2);
  run_training();
  EXPECT_EQ(read_json_lines("predictions.jsonl"), uninterrupted);
}

TEST_F(SamplePredictionsTest, DoNotChangeTraining) {
  std::map<double, std::vector<std::string>> numbers;
  for (const double share : {0.0, 0.5, 1.0}) {
    config_.output.dir = folder() / fmt::format("share-{}", share);
    config_.output.max_prediction_time_share = share;
    run_training();
    for (const auto& step : read_json_lines("metrics.jsonl")) {
      numbers[share].push_back(nlohmann::json{step["loss"], step["grad_norm"]}.dump());
    }
    numbers[share].push_back(read_text(run_folder() / "checkpoints/step-3/model.safetensors"));
  }
  EXPECT_EQ(numbers.at(0.5) == numbers.at(0.0), true);
  EXPECT_EQ(numbers.at(1.0) == numbers.at(0.0), true);
}

TEST_F(SamplePredictionsTest, SkipsUnusableSamples) {
  const fs::path images = folder() / "images";
  fs::copy(config_.data.image_root, images);
  config_.data.eval = folder() / "eval.json";
  fs::copy(config_.data.train.name(), config_.data.eval);
  config_.data.image_root = images;
  config_.data.on_bad_sample = data::BadSamplePolicy::kSkip;
  fs::remove(images / "small.png");
  config_.training.global_batch_size = 1;
  config_.training.micro_batch_size = 1;
  run_training();
  for (const auto& [step, ids] : list_answers()) {
    EXPECT_THAT(ids, testing::UnorderedElementsAre("words", "row", "two")) << step;
  }
}

}  // namespace

}  // namespace vlmtrain::train
