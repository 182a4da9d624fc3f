#include <gmock/gmock.h>

#include "base/captured_log.h"
#include "models/checkpoint_copy.h"
#include "planner/user_error.h"
#include "train/data_check/data_check.h"
#include "train/small_run.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Runs whose data has notices.
class NoticesInRunTest : public SmallRunTest {
 protected:
  /// Uses a model with fewer positions than three of the four samples need.
  void use_short_context_model() {
    short_context_model_.edit("config.json",
                              [](auto& content) { content["text_config"]["max_position_embeddings"] = 30; });
    config_.model.path = short_context_model_.path();
  }

  void use_text_only_data(const std::string& name = "words.json", int64_t samples = 4) {
    auto records = nlohmann::json::array();
    for (int64_t i = 0; i < samples; ++i) {
      records.push_back({{"id", fmt::format("w{}", i)}, {"question", fmt::format("How many? {}", i)}, {"answer", "3"}});
    }
    std::ofstream(folder() / name) << records.dump();
    config_.data.train = folder() / name;
  }

  nlohmann::json read_ledger() const { return nlohmann::json::parse(read_text(run_folder() / "ledger.json")); }

  static constexpr const char* kKind = "more positions than the model was made for (max_position_embeddings 30)";

 private:
  models::CheckpointCopy short_context_model_{"mixed_batch"};
};

TEST_F(NoticesInRunTest, LogsAndRecordsNoticesOnce) {
  use_short_context_model();
  const CapturedLog log;
  run_training();
  const auto notices = read_ledger()["notices"];
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_EQ(notices[0]["kind"], kKind);
  EXPECT_EQ(notices[0]["samples"], 3);
  EXPECT_EQ(notices[0]["example"]["id"], "square");
  EXPECT_EQ(read_ledger()["notices_of"], "all");
  EXPECT_THAT(log.text(), HasSubstr(fmt::format("{}: 3 of 4 samples, such as sample square", kKind)));
  EXPECT_THAT(log.text(), HasSubstr("lower data.max_length"));
}

TEST_F(NoticesInRunTest, ResumedRunReadsNoticesFromTheCache) {
  use_short_context_model();
  run_training();
  const auto notices_before = read_ledger()["notices"];
  config_.training.max_steps = kSteps + 1;
  config_.resume_policy = ResumePolicy::kChanged;
  const CapturedLog log;
  run_training();
  EXPECT_THAT(log.text(), HasSubstr("4 of them unchanged"));
  EXPECT_THAT(log.text(), HasSubstr(fmt::format("{}: 3 of 4 samples", kKind)));
  EXPECT_EQ(read_ledger()["notices"], notices_before);
}

TEST_F(NoticesInRunTest, LedgerHasEvaluationNotices) {
  use_short_context_model();
  config_.data.eval = config_.data.train.name();
  config_.evaluation.steps = kSteps;
  config_.evaluation.generate_answers = false;
  run_training();
  const auto evaluation = read_ledger()["evaluation"];
  EXPECT_EQ(evaluation["dataset"], config_.data.eval);
  EXPECT_EQ(evaluation["samples"], 4);
  EXPECT_EQ(evaluation["notices"][0]["samples"], 3);
}

TEST_F(NoticesInRunTest, WithoutCheckCountsUsedSamples) {
  use_short_context_model();
  auto records = nlohmann::json::parse(read_text(config_.data.train.name()));
  const auto extra_record = records[1];
  for (int64_t i = 0; i < 600; ++i) {
    records.push_back(extra_record);
    records.back()["id"] = fmt::format("more-{}", i);
  }
  std::ofstream(folder() / "many.json") << records.dump();
  config_.data.train = folder() / "many.json";
  config_.data.check_at_start = false;
  config_.output.save_steps = 1;
  CapturedLog log;
  run_training();
  const auto count_used_samples = [this] { return read_ledger()["notices"][0]["samples"].get<int64_t>(); };
  const int64_t first = count_used_samples();
  EXPECT_GE(first, kSteps * 4 - 1);
  EXPECT_LE(first, kSteps * 4);
  EXPECT_EQ(read_ledger()["notices_of"], "used");
  EXPECT_THAT(log.text(), HasSubstr(fmt::format("{}, first found in sample", kKind)));
  config_.training.max_steps = kSteps + 1;
  config_.resume_policy = ResumePolicy::kChanged;
  run_training();
  EXPECT_GE(count_used_samples(), first + 3) << "those before the resume are kept";
  EXPECT_LE(count_used_samples(), first + 4);
}

TEST_F(NoticesInRunTest, WarnsWithoutMedia) {
  use_text_only_data();
  config_.training.max_steps = 1;
  config_.data.eval = config_.data.train.name();
  config_.evaluation.steps = 1;
  config_.evaluation.generate_answers = false;
  const CapturedLog log;
  run_training();
  EXPECT_THAT(log.text(), HasSubstr("warning: data.train " + config_.data.train.name() +
                                    ": none of the 4 usable samples has an image, video or volume"));
  EXPECT_THAT(log.text(), HasSubstr("warning: data.eval " + config_.data.eval + ": none of the 4 usable samples"));
}

TEST_F(NoticesInRunTest, MentionsASourceWithoutMedia) {
  const auto images = config_.data.train.name();
  use_text_only_data();
  const auto text_data = config_.data.train.name();
  ASSERT_FALSE(config_.data.train.set({{{"path", images}, {"image_root", config_.data.image_root}}, text_data}));
  config_.training.max_steps = 1;
  const CapturedLog log;
  run_training();
  EXPECT_THAT(log.text(), HasSubstr("info: data " + text_data + ": none of the 4 samples of this source has an image"));
  EXPECT_THAT(log.text(), Not(HasSubstr("gets text only")));
}

TEST_F(NoticesInRunTest, WarnsAboutTrainedEvaluationSamples) {
  config_.evaluation.steps = kSteps;
  config_.evaluation.generate_answers = false;
  // The same questions under other ids, another question about a training image, and something new.
  auto records = nlohmann::json::parse(read_text(config_.data.train.name()));
  for (auto& record : records) record["id"] = "e-" + record["id"].get<std::string>();
  records[1]["conversations"][0]["value"] = "<image>\nWhat else?";
  records[0]["conversations"][0]["value"] = "Something new?";
  std::ofstream(folder() / "e.json") << records.dump();
  config_.data.eval = folder() / "e.json";
  for (const bool is_cached : {false, true}) {
    SCOPED_TRACE(is_cached);
    const CapturedLog log;
    if (is_cached) {
      config_.training.max_steps = kSteps + 1;
      config_.resume_policy = ResumePolicy::kChanged;
    }
    run_training();
    EXPECT_THAT(log.text(),
                HasSubstr("warning: data.eval: 2 of 4 samples are also in data.train with the same text and media"));
    EXPECT_THAT(log.text(), HasSubstr("such as e-row"));
    EXPECT_THAT(log.text(), HasSubstr("info: data.eval: 1 of 4 samples has an image, video or volume that is also in "
                                      "data.train with other text, such as e-square"));
  }
}

TEST_F(NoticesInRunTest, FindsASharedFileWithoutCheck) {
  config_.data.check_at_start = false;
  config_.evaluation.steps = kSteps;
  config_.evaluation.generate_answers = false;
  fs::create_symlink(config_.data.train.name(), folder() / "link.json");
  config_.data.eval = folder() / "link.json";
  const CapturedLog log;
  run_training();
  EXPECT_THAT(log.text(), HasSubstr("link.json is also in data.train, so evaluations"));
}

TEST_F(NoticesInRunTest, HeldOutSamplesCauseNoWarning) {
  config_.data.eval = "0.25";
  config_.evaluation.steps = kSteps;
  config_.evaluation.generate_answers = false;
  config_.training.global_batch_size = config_.training.micro_batch_size.emplace(3);
  const CapturedLog log;
  run_training();
  EXPECT_THAT(log.text(), Not(HasSubstr("also in data.train")));
  EXPECT_THAT(log.text(), Not(HasSubstr("warning")));
}

TEST_F(NoticesInRunTest, WarnsAboutUnusedSettings) {
  config_.data.video_fps = 1;
  config_.training.max_steps = 1;
  const CapturedLog log;
  run_training();
  EXPECT_THAT(log.text(), HasSubstr("warning: data.video_fps=1 has no effect: no sample has a video"));
}

TEST_F(NoticesInRunTest, RejectsTrainingMediaPartsWithoutMedia) {
  use_text_only_data();
  config_.model.freeze_language_model = true;
  EXPECT_THAT(planner::get_usage_error([this] { run_training(); }),
              AllOf(HasSubstr("model.freeze_language_model"), HasSubstr("the vision tower and the projector")));
  config_.model.freeze_language_model = false;
  config_.lora.rank = 2;
  config_.lora.target_modules = {".*vision_model.*(q|v)_proj"};
  EXPECT_THAT(planner::get_usage_error([this] { run_training(); }),
              AllOf(HasSubstr("lora.target_modules"), HasSubstr("the vision tower")));
  EXPECT_THAT(checkpoints(), IsEmpty());
}

TEST_F(NoticesInRunTest, FailsIfNoStepHasAGradient) {
  use_text_only_data("many.json", 600);
  config_.data.check_at_start = false;
  config_.model.freeze_language_model = true;
  EXPECT_THAT(planner::get_usage_error([this] { run_training(); }, ExitCode::kFailed),
              AllOf(HasSubstr("was zero in each step"), HasSubstr("the vision tower and the projector")));
  const auto events = read_json_lines("events.jsonl");
  EXPECT_THAT(events.at(0)["message"].get<std::string>(),
              HasSubstr("step 1: the gradient of all trained weights is zero"));
}

TEST_F(NoticesInRunTest, WarnsOldRunsAboutIgnoredKeys) {
  data::SampleIndex sample_index{.shapes = data::SampleShapes(3), .ids = TextColumn(3)};
  sample_index.problems[1] = {
      .reason = "unusable record", .message = "weight is 0; name it in data.ignore_keys", .is_dropped = false};
  sample_index.problems[2] = {.reason = "unusable record", .message = "no turns", .is_dropped = false};
  const io::InMemoryRecords records(std::vector<io::Record>(3));
  const auto handle_with_policy = [&](data::BadSamplePolicy policy, bool earlier_version_ignored_keys) {
    config_.data.on_bad_sample = policy;
    const CapturedLog log;
    data::Ledger read_ledger("train.json", 3);
    try {
      handle_bad_samples(sample_index, config_, records, read_ledger, folder() / "ledger.json",
                         earlier_version_ignored_keys);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
    }
    return log.text();
  };
  EXPECT_THAT(handle_with_policy(data::BadSamplePolicy::kFail, true),
              AllOf(HasSubstr("in 1 sample"), HasSubstr("data.ignore_keys"),
                    HasSubstr("or set data.on_bad_sample=skip to drop")));
  EXPECT_THAT(handle_with_policy(data::BadSamplePolicy::kSkip, true),
              AllOf(HasSubstr("started by a version"), HasSubstr("dropped from now on")));
  EXPECT_THAT(handle_with_policy(data::BadSamplePolicy::kSkip, false), Not(HasSubstr("started by a version")));
}

}  // namespace

}  // namespace vlmtrain::train
