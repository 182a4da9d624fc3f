#include <gmock/gmock.h>

#include "base/captured_log.h"
#include "models/checkpoint_copy.h"
#include "planner/user_error.h"
#include "train/data_check.h"
#include "train/small_run.h"

namespace vlmtrain::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Runs whose data has something to report.
class NoticesInRunTest : public SmallRunTest {
 protected:
  /// Three of the four samples have more positions.
  void take_model_made_for_few_positions() {
    short_.edit("config.json", [](auto& content) { content["text_config"]["max_position_embeddings"] = 30; });
    config_.model.path = short_.path();
  }

  void take_words_only(const std::string& name = "words.json", int64_t samples = 4) {
    auto records = nlohmann::json::array();
    for (int64_t i = 0; i < samples; ++i) {
      records.push_back({{"id", fmt::format("w{}", i)}, {"question", fmt::format("How many? {}", i)}, {"answer", "3"}});
    }
    std::ofstream(folder() / name) << records.dump();
    config_.data.train = folder() / name;
  }

  nlohmann::json ledger() const { return nlohmann::json::parse(read_text(run_folder() / "ledger.json")); }

  static constexpr const char* kKind = "more positions than the model was made for (max_position_embeddings 30)";

 private:
  models::CheckpointCopy short_{"mixed_batch"};
};

TEST_F(NoticesInRunTest, NoticesAreInLogAndLedgerOnce) {
  take_model_made_for_few_positions();
  const CapturedLog log;
  train_well();
  const auto notices = ledger()["notices"];
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_EQ(notices[0]["kind"], kKind);
  EXPECT_EQ(notices[0]["samples"], 3);
  EXPECT_EQ(notices[0]["example"]["id"], "square");
  EXPECT_EQ(ledger()["notices_of"], "all");
  EXPECT_THAT(log.text(), HasSubstr(fmt::format("{}: 3 of 4 samples, such as sample square", kKind)));
  EXPECT_THAT(log.text(), HasSubstr("lower data.max_length"));
}

TEST_F(NoticesInRunTest, NoticesAreThoseOfTheCacheWhereARunGoesOn) {
  take_model_made_for_few_positions();
  train_well();
  const auto before = ledger()["notices"];
  config_.training.max_steps = kSteps + 1;
  config_.resume = Resume::kChanged;
  const CapturedLog log;
  train_well();
  EXPECT_THAT(log.text(), HasSubstr("4 of them as they were"));
  EXPECT_THAT(log.text(), HasSubstr(fmt::format("{}: 3 of 4 samples", kKind)));
  EXPECT_EQ(ledger()["notices"], before);
}

TEST_F(NoticesInRunTest, NoticesOfTheEvaluationAreInTheLedgerToo) {
  take_model_made_for_few_positions();
  config_.data.eval = config_.data.train.name();
  config_.evaluation.steps = kSteps;
  config_.evaluation.answers = false;
  train_well();
  const auto evaluation = ledger()["evaluation"];
  EXPECT_EQ(evaluation["dataset"], config_.data.eval);
  EXPECT_EQ(evaluation["samples"], 4);
  EXPECT_EQ(evaluation["notices"][0]["samples"], 3);
}

TEST_F(NoticesInRunTest, WithoutACheckSamplesAreCountedAsTheyAreUsed) {
  take_model_made_for_few_positions();
  auto records = nlohmann::json::parse(read_text(config_.data.train.name()));
  const auto one = records[1];
  for (int64_t i = 0; i < 600; ++i) {
    records.push_back(one);
    records.back()["id"] = fmt::format("more-{}", i);
  }
  std::ofstream(folder() / "many.json") << records.dump();
  config_.data.train = folder() / "many.json";
  config_.data.check_at_start = false;
  config_.output.save_steps = 1;
  CapturedLog log;
  train_well();
  const auto used = [this] { return ledger()["notices"][0]["samples"].get<int64_t>(); };
  const int64_t first = used();
  EXPECT_GE(first, kSteps * 4 - 1);
  EXPECT_LE(first, kSteps * 4);
  EXPECT_EQ(ledger()["notices_of"], "used");
  EXPECT_THAT(log.text(), HasSubstr(fmt::format("{}, first met in sample", kKind)));
  config_.training.max_steps = kSteps + 1;
  config_.resume = Resume::kChanged;
  train_well();
  EXPECT_GE(used(), first + 3) << "those before the resume are kept";
  EXPECT_LE(used(), first + 4);
}

TEST_F(NoticesInRunTest, ARunOnWordsAloneIsWarnedOf) {
  take_words_only();
  config_.training.max_steps = 1;
  config_.data.eval = config_.data.train.name();
  config_.evaluation.steps = 1;
  config_.evaluation.answers = false;
  const CapturedLog log;
  train_well();
  EXPECT_THAT(log.text(), HasSubstr("warning: data.train " + config_.data.train.name() +
                                    ": none of the 4 usable samples has an image, video or volume"));
  EXPECT_THAT(log.text(), HasSubstr("warning: data.eval " + config_.data.eval + ": none of the 4 usable samples"));
}

TEST_F(NoticesInRunTest, ASourceOfWordsBesideOneWithImagesIsMentionedOnly) {
  const auto images = config_.data.train.name();
  take_words_only();
  const auto words = config_.data.train.name();
  ASSERT_FALSE(config_.data.train.set({{{"path", images}, {"image_root", config_.data.image_root}}, words}));
  config_.training.max_steps = 1;
  const CapturedLog log;
  train_well();
  EXPECT_THAT(log.text(), HasSubstr("info: data " + words + ": none of the 4 samples of this source has an image"));
  EXPECT_THAT(log.text(), Not(HasSubstr("works on text alone")));
}

TEST_F(NoticesInRunTest, EvaluationSamplesThatAreTrainedOnAreWarnedOf) {
  config_.evaluation.steps = kSteps;
  config_.evaluation.answers = false;
  // The same questions by other ids; another question about an image of training; something new.
  auto records = nlohmann::json::parse(read_text(config_.data.train.name()));
  for (auto& record : records) record["id"] = "e-" + record["id"].get<std::string>();
  records[1]["conversations"][0]["value"] = "<image>\nWhat else?";
  records[0]["conversations"][0]["value"] = "Something new?";
  std::ofstream(folder() / "e.json") << records.dump();
  config_.data.eval = folder() / "e.json";
  for (const bool is_known : {false, true}) {
    SCOPED_TRACE(is_known);
    const CapturedLog log;
    if (is_known) {
      config_.training.max_steps = kSteps + 1;
      config_.resume = Resume::kChanged;
    }
    train_well();
    EXPECT_THAT(log.text(), HasSubstr("warning: data.eval: 2 of 4 samples are trained on too, word for word"));
    EXPECT_THAT(log.text(), HasSubstr("such as e-row"));
    EXPECT_THAT(log.text(), HasSubstr("info: data.eval: 1 of 4 samples have an image, video or volume that is trained "
                                      "on with other words, such as e-square"));
  }
}

TEST_F(NoticesInRunTest, AFileThatIsBothTrainedAndEvaluatedOnIsFoundWithoutACheck) {
  config_.data.check_at_start = false;
  config_.evaluation.steps = kSteps;
  config_.evaluation.answers = false;
  fs::create_symlink(config_.data.train.name(), folder() / "link.json");
  config_.data.eval = folder() / "link.json";
  const CapturedLog log;
  train_well();
  EXPECT_THAT(log.text(), HasSubstr("link.json is trained on too (data.train)"));
}

TEST_F(NoticesInRunTest, SamplesOfTheirOwnAreNotWarnedOf) {
  config_.data.eval = "0.25";
  config_.evaluation.steps = kSteps;
  config_.evaluation.answers = false;
  config_.training.global_batch_size = config_.training.micro_batch_size.emplace(3);
  const CapturedLog log;
  train_well();
  EXPECT_THAT(log.text(), Not(HasSubstr("are trained on too")));
  EXPECT_THAT(log.text(), Not(HasSubstr("warning")));
}

TEST_F(NoticesInRunTest, SettingsWithoutEffectAreWarnedOf) {
  config_.data.video_fps = 1;
  config_.training.max_steps = 1;
  const CapturedLog log;
  train_well();
  EXPECT_THAT(log.text(), HasSubstr("warning: data.video_fps=1 has no effect: no sample has a video"));
}

TEST_F(NoticesInRunTest, WhatWouldLearnNothingFromWordsIsRefused) {
  take_words_only();
  config_.model.freeze_language_model = true;
  EXPECT_THAT(planner::message_of([this] { train_well(); }),
              AllOf(HasSubstr("model.freeze_language_model"), HasSubstr("the vision tower and the projector")));
  config_.model.freeze_language_model = false;
  config_.lora.rank = 2;
  config_.lora.target_modules = {".*vision_model.*(q|v)_proj"};
  EXPECT_THAT(planner::message_of([this] { train_well(); }),
              AllOf(HasSubstr("lora.target_modules"), HasSubstr("the vision tower")));
  EXPECT_THAT(checkpoints(), IsEmpty());
}

TEST_F(NoticesInRunTest, ARunThatNeverHasAGradientEndsWithAnError) {
  take_words_only("many.json", 600);
  config_.data.check_at_start = false;
  config_.model.freeze_language_model = true;
  EXPECT_THAT(planner::message_of([this] { train_well(); }, ExitCode::kFailed),
              AllOf(HasSubstr("was zero in each step"), HasSubstr("the vision tower and the projector")));
  const auto events = lines_of("events.jsonl");
  EXPECT_THAT(events.at(0)["message"].get<std::string>(),
              HasSubstr("step 1: the gradient of all trained weights is zero"));
}

TEST_F(NoticesInRunTest, ARunOfAnOlderVersionIsToldWhichKeysReadItsSamplesAsBefore) {
  data::Outlines outlines{.shapes = data::SampleShapes(3), .ids = TextColumn(3)};
  outlines.problems[1] = {
      .reason = "unusable record", .message = "weight is 0; name it in data.ignore_keys", .is_dropped = false};
  outlines.problems[2] = {.reason = "unusable record", .message = "no turns", .is_dropped = false};
  const io::RecordList records(std::vector<io::Record>(3));
  const auto settle = [&](data::BadSamplePolicy policy, bool read_otherwise) {
    config_.data.on_bad_sample = policy;
    const CapturedLog log;
    data::Ledger ledger("train.json", 3);
    try {
      settle_bad_samples(outlines, config_, records, ledger, folder() / "ledger.json", read_otherwise);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
    }
    return log.text();
  };
  EXPECT_THAT(settle(data::BadSamplePolicy::kFail, true), AllOf(HasSubstr("in 1 sample"), HasSubstr("data.ignore_keys"),
                                                                HasSubstr("data.on_bad_sample=skip drops")));
  EXPECT_THAT(settle(data::BadSamplePolicy::kSkip, true),
              AllOf(HasSubstr("begun by a version"), HasSubstr("dropped from here on")));
  EXPECT_THAT(settle(data::BadSamplePolicy::kSkip, false), Not(HasSubstr("begun by a version")));
}

}  // namespace
}  // namespace vlmtrain::train
