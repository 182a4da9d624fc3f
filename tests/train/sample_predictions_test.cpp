#include "train/sample_predictions.h"

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

/// A checkpoint at each of three steps, and four samples to ask.
class SamplePredictionsTest : public SmallRunTest {
 protected:
  /// So short that no second answer is in it.
  static constexpr double kHardlyAny = 1e-9;

  SamplePredictionsTest() {
    config_.output.sample_predictions = 4;
    config_.output.sample_predictions_share = 1;
    config_.output.save_steps = 1;
    config_.output.keep = kSteps;
    config_.output.report = config_.output.tensorboard = false;
  }

  /// By step, the ids in the order of their answers.
  std::map<int64_t, std::vector<std::string>> asked() const {
    std::map<int64_t, std::vector<std::string>> ids;
    for (const auto& answer : lines_of("predictions.jsonl")) ids[answer["step"]].push_back(answer["id"]);
    return ids;
  }
  std::vector<std::string> events(const std::string& kind) const {
    std::vector<std::string> messages;
    for (const auto& event : lines_of("events.jsonl")) {
      if (event["kind"] == kind) messages.push_back(event["message"]);
    }
    return messages;
  }
  void forget_checkpoint(int64_t step) const {
    ASSERT_GT(fs::remove_all(run_folder() / fmt::format("checkpoints/step-{}", step)), 0U);
  }
  /// As if the process had been killed before it asked, or after `left` answers.
  void forget_answers_behind(int64_t step, int64_t left = 0) const {
    std::string kept;
    for (const auto& answer : lines_of("predictions.jsonl")) {
      if (answer["step"] > step && left-- <= 0) continue;
      kept += answer.dump() + "\n";
    }
    std::ofstream(run_folder() / "predictions.jsonl") << kept;
  }
};

TEST_F(SamplePredictionsTest, WithoutALimitAllAreAskedEachTime) {
  train_well();
  const auto ids = asked();
  ASSERT_THAT(ids, SizeIs(3));
  for (const auto& [step, of_step] : ids) {
    EXPECT_THAT(of_step, testing::UnorderedElementsAre("words", "square", "row", "two"));
  }
  EXPECT_THAT(events("fewer_answers"), IsEmpty());
}

TEST_F(SamplePredictionsTest, WhereTheyTakeTooLongEachGetsItsTurn) {
  train_well();
  const auto order = asked().at(1);
  config_.output.sample_predictions_share = kHardlyAny;
  config_.output.dir = folder() / "fewer";
  train_well();
  const auto ids = asked();
  EXPECT_THAT(ids, ElementsAre(testing::Pair(1, ElementsAre(order[0])), testing::Pair(3, ElementsAre(order[1]))))
      << "the first shows what one takes, the run's end always has one";
  const auto said = events("fewer_answers");
  ASSERT_THAT(said, SizeIs(1)) << "once";
  EXPECT_THAT(said[0], HasSubstr("step 1: 1 of the 4 sample answers"));
  EXPECT_THAT(said[0], HasSubstr("output.sample_predictions_share is 1e-09"));
}

TEST_F(SamplePredictionsTest, TheTurnGoesOnWithTheRun) {
  train_well();
  const auto order = asked().at(1);
  config_.output.sample_predictions_share = kHardlyAny;
  config_.output.dir = folder() / "fewer";
  train_well();
  forget_checkpoint(3);
  train_well();
  EXPECT_THAT(asked(), ElementsAre(testing::Pair(1, ElementsAre(order[0])), testing::Pair(2, ElementsAre(order[1])),
                                   testing::Pair(3, ElementsAre(order[2]))))
      << "that of step 2 is made up, and what one takes is measured anew";
}

TEST_F(SamplePredictionsTest, AShareOfNothingIsOneAtTheEnd) {
  config_.output.sample_predictions_share = 0;
  train_well();
  const auto ids = asked();
  ASSERT_THAT(ids, SizeIs(1));
  EXPECT_THAT(ids.at(3), SizeIs(1));
}

TEST_F(SamplePredictionsTest, WhatAKilledProcessHadNotAskedIsMadeUp) {
  train_well();
  const auto straight = lines_of("predictions.jsonl");
  forget_checkpoint(3);
  forget_answers_behind(1);
  train_well();
  EXPECT_EQ(lines_of("predictions.jsonl"), straight) << "with the answers of the model as it was then";
}

TEST_F(SamplePredictionsTest, WhatWasBegunIsNotAskedAgain) {
  train_well();
  forget_checkpoint(3);
  forget_answers_behind(1, /*left=*/1);
  train_well();
  EXPECT_THAT(asked().at(2), SizeIs(1));
  EXPECT_THAT(asked().at(3), SizeIs(4));
}

TEST_F(SamplePredictionsTest, ThoseOfTheLastCheckpointAreMadeUpToo) {
  train_well();
  const auto straight = lines_of("predictions.jsonl");
  forget_answers_behind(2);
  train_well();
  EXPECT_EQ(lines_of("predictions.jsonl"), straight);
}

TEST_F(SamplePredictionsTest, NoNumberOfTheTrainingDependsOnThem) {
  std::map<double, std::vector<std::string>> numbers;
  for (const double share : {0.0, 0.5, 1.0}) {
    config_.output.dir = folder() / fmt::format("share-{}", share);
    config_.output.sample_predictions_share = share;
    train_well();
    for (const auto& step : lines_of("metrics.jsonl")) {
      numbers[share].push_back(nlohmann::json{step["loss"], step["grad_norm"]}.dump());
    }
    numbers[share].push_back(read_text(run_folder() / "checkpoints/step-3/model.safetensors"));
  }
  EXPECT_EQ(numbers.at(0.5) == numbers.at(0.0), true);
  EXPECT_EQ(numbers.at(1.0) == numbers.at(0.0), true);
}

TEST_F(SamplePredictionsTest, ASampleThatCannotBeUsedIsNotAskedAgain) {
  const fs::path images = folder() / "images";
  fs::copy(config_.data.image_root, images);
  config_.data.eval = folder() / "eval.json";
  fs::copy(config_.data.train.name(), config_.data.eval);
  config_.data.image_root = images;
  config_.data.on_bad_sample = data::BadSamplePolicy::kSkip;
  fs::remove(images / "small.png");
  config_.training.global_batch_size = 1;
  config_.training.micro_batch_size = 1;
  train_well();
  for (const auto& [step, ids] : asked()) {
    EXPECT_THAT(ids, testing::UnorderedElementsAre("words", "row", "two")) << step;
  }
}

}  // namespace
}  // namespace vlmtrain::train
