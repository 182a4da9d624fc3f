#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include "train/small_run.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

/// A run of three steps that continues with other settings (docs/how-to/resume.md). Each step uses all
/// four samples.
class ResumeChangedTest : public SmallRunTest {
 protected:
  ResumeChangedTest() {
    config_.training.lr_scheduler = engine::ScheduleShape::kLinear;
    config_.training.warmup_ratio = 0;
    config_.training.learning_rate = 1e-3;
    config_.output.save_total_limit = 9;
    config_.output.save_steps = 1;
  }

  void run_changed_training() {
    config_.resume_policy = ResumePolicy::kChanged;
    run_training();
    config_.resume_policy = ResumePolicy::kAuto;
  }

  std::string get_refusal() const {
    try {
      run_training();
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return "it was taken";
  }

  std::string read_changes() const {
    std::string messages;
    for (const auto& event : read_json_lines("events.jsonl")) {
      if (event["kind"] == "changed") messages += event["message"].get<std::string>() + "\n";
    }
    return messages;
  }

  double read_learning_rate(size_t step) const {
    return read_json_lines("metrics.jsonl").at(step - 1)["learning_rate"];
  }
  double read_epoch(size_t step) const { return read_json_lines("metrics.jsonl").at(step - 1)["epoch"]; }

  fs::path checkpoint(int64_t step) const { return run_folder() / "checkpoints" / fmt::format("step-{}", step); }
  nlohmann::json read_state(int64_t step) const {
    return nlohmann::json::parse(read_text(checkpoint(step) / "trainer_state/state.json"));
  }
  nlohmann::json read_ledger(const std::string& file) const {
    return nlohmann::json::parse(read_text(run_folder() / file));
  }

  /// Returns whether the weights of a part are the same in two checkpoints.
  static bool has_same_weights(const fs::path& a, const fs::path& b, std::string_view name_part) {
    const io::CheckpointTensors first(a), second(b);
    bool has_same_weights = true;
    for (const auto& name : first.names()) {
      if (name.find(name_part) != std::string::npos)
        has_same_weights &= at::equal(first.tensor(name), second.tensor(name));
    }
    return has_same_weights;
  }
};

TEST_F(ResumeChangedTest, MoreStepsStretchTheSchedule) {
  run_training();
  config_.training.max_steps = 6;
  EXPECT_THAT(get_refusal(), AllOf(HasSubstr("was 3, is 6"), HasSubstr("training.resume=changed")));
  run_changed_training();
  ASSERT_THAT(read_json_lines("metrics.jsonl"), SizeIs(6));
  EXPECT_NEAR(read_learning_rate(3), 1e-3 / 3, 1e-12);
  EXPECT_NEAR(read_learning_rate(4), 1e-3 / 2, 1e-12) << "the fourth of six";
  EXPECT_EQ(read_json_lines("metrics.jsonl").back()["total_steps"], 6);
  EXPECT_THAT(read_changes(), AllOf(HasSubstr("step 3: "), HasSubstr(": 3 → 6"), HasSubstr("continues at 0.0005"),
                                    HasSubstr("6 steps in total"), Not(HasSubstr("start"))));
  EXPECT_EQ(read_state(6)["changed_at"], 3);
  EXPECT_EQ(read_state(6)["schedule_start"], 0);
}

TEST_F(ResumeChangedTest, ScheduleFromTheChangeSpansTheRemainingSteps) {
  run_training();
  config_.training.max_steps = 7;
  config_.schedule_origin = ScheduleOrigin::kLastChange;
  run_changed_training();
  for (size_t step = 4; step <= 7; ++step)
    EXPECT_NEAR(read_learning_rate(step), 1e-3 * static_cast<double>(8 - step) / 4, 1e-12);
  EXPECT_EQ(read_state(7)["schedule_start"], 3);
  // The start of the schedule stays, without training.resume=changed and with another change.
  fs::remove_all(checkpoint(7));
  fs::remove_all(checkpoint(6));
  run_training();
  EXPECT_NEAR(read_learning_rate(6), 1e-3 / 2, 1e-12);
  fs::remove_all(checkpoint(7));
  config_.training.optimizer.weight_decay = 0.1;
  run_changed_training();
  EXPECT_NEAR(read_learning_rate(7), 1e-3 / 4, 1e-12);
  EXPECT_EQ(read_state(7)["schedule_start"], 3);
  EXPECT_EQ(read_state(7)["changed_at"], 6);
  // Another rate restarts the schedule at the change; with schedule_origin=start it covers all
  // steps.
  fs::remove_all(checkpoint(7));
  config_.training.learning_rate = 2e-3;
  run_changed_training();
  EXPECT_NEAR(read_learning_rate(7), 2e-3, 1e-12);
  fs::remove_all(checkpoint(7));
  config_.schedule_origin = ScheduleOrigin::kStart;
  run_changed_training();
  EXPECT_NEAR(read_learning_rate(7), 2e-3 / 7, 1e-12);
}

TEST_F(ResumeChangedTest, EpochsCountTheNewDataset) {
  config_.training.max_steps.reset();
  config_.training.epochs = 3;
  run_training();
  // The remaining passes take twice the steps with half the batch.
  config_.training.epochs = 5;
  config_.training.global_batch_size = 2;
  config_.training.micro_batch_size = 2;
  run_changed_training();
  EXPECT_THAT(read_json_lines("metrics.jsonl"), SizeIs(3 + 4));
  EXPECT_EQ(read_epoch(7), 5);
  // Two of the four records under another name.
  const auto records = nlohmann::json::parse(read_text(config_.data.train.name()));
  const fs::path other_data = folder() / "other.json";
  std::ofstream(other_data) << nlohmann::json{records[0], records[1]};
  config_.data.train = other_data;
  config_.training.epochs = 2;
  run_changed_training();
  EXPECT_THAT(read_json_lines("metrics.jsonl"), SizeIs(7 + 2));
  EXPECT_EQ(read_epoch(8), 1);
  EXPECT_EQ(read_epoch(9), 2);
  EXPECT_EQ(read_ledger("ledger.json")["samples"], 2);
  EXPECT_EQ(read_ledger("ledger.json")["used"], 2);
  EXPECT_EQ(read_ledger("ledger-to-step-7.json")["samples"], 4);
  EXPECT_EQ(read_ledger("ledger-to-step-7.json")["used"], 4);
  EXPECT_FALSE(fs::exists(run_folder() / "ledger-to-step-3.json")) << "the data set was the same";
  EXPECT_THAT(read_changes(), AllOf(HasSubstr("samples in data.train: 4 → 2"), HasSubstr("ledger-to-step-7.json")));
  // It resumes without training.resume=changed, at its position in the new data.
  fs::remove_all(checkpoint(9));
  run_training();
  EXPECT_EQ(read_epoch(9), 2);
  // All steps are done, so that another change would be too late.
  config_.training.optimizer.weight_decay = 0.1;
  config_.resume_policy = ResumePolicy::kChanged;
  EXPECT_THAT(get_refusal(), AllOf(HasSubstr("has completed 9 steps"), HasSubstr("training.epochs=2 adds no more")));
}

TEST_F(ResumeChangedTest, NewlyFrozenPartsKeepTheirWeights) {
  config_.model.freeze_projector = true;
  run_training();
  EXPECT_FALSE(has_same_weights(checkpoint(1), checkpoint(3), "vision_model"));
  config_.training.max_steps = 6;
  config_.model.freeze_projector = false;
  config_.model.freeze_vision_tower = true;
  run_changed_training();
  EXPECT_TRUE(has_same_weights(checkpoint(3), checkpoint(6), "vision_model"));
  EXPECT_FALSE(has_same_weights(checkpoint(3), checkpoint(6), "connector"));
  EXPECT_FALSE(has_same_weights(checkpoint(3), checkpoint(6), "text_model"));
  EXPECT_THAT(read_changes(), AllOf(HasSubstr("model.freeze_projector: true → false"),
                                    HasSubstr("trained tensors are kept, those of"), HasSubstr("start at zero")));
  EXPECT_EQ(read_state(6)["settled_parts"], nlohmann::json::array({"model.freeze_vision_tower"}));
  // A resumed run keeps that.
  fs::remove_all(checkpoint(6));
  fs::remove_all(checkpoint(5));
  run_training();
  EXPECT_TRUE(has_same_weights(checkpoint(3), checkpoint(6), "vision_model"));
  EXPECT_EQ(read_state(6)["settled_parts"].size(), 1U);
}

TEST_F(ResumeChangedTest, ChangedWithoutChangesIsAuto) {
  run_changed_training();
  EXPECT_FALSE(read_state(3).contains("changed_at"));
  const auto uninterrupted = read_json_lines("metrics.jsonl");
  fs::remove_all(checkpoint(3));
  run_changed_training();
  EXPECT_EQ(read_json_lines("metrics.jsonl").back()["loss"], uninterrupted.back()["loss"]);
  EXPECT_FALSE(read_state(3).contains("changed_at"));
  EXPECT_THAT(read_changes(), IsEmpty());
  EXPECT_TRUE(fs::exists(run_folder() / "ledger.json"));
}

/// Whatever an edited fingerprint says, it is rejected with a message or reported as a changed
/// setting.
TEST_F(ResumeChangedTest, EditedFingerprintIsRejectedOrReported) {
  run_training();
  const auto file = checkpoint(3) / "trainer_state/state.json";
  const auto original = read_state(3);
  config_.training.max_steps = 4;
  config_.resume_policy = ResumePolicy::kChanged;
  const auto write_fingerprint = [&](const char* key, const nlohmann::json& value) {
    auto edited = original;
    edited["fingerprint"][key] = value;
    std::ofstream(file) << edited;
    fs::remove(file.parent_path() / "checksums.json");  // which would notice it
  };
  write_fingerprint(kSampleCountKey, 7);
  EXPECT_THROW(run_training(), UserError) << "the ledger has four";
  write_fingerprint(kSampleCountKey, "none");
  EXPECT_THROW(run_training(), UserError);
  write_fingerprint("model.freeze_projector", nlohmann::json::array({1}));
  EXPECT_NO_THROW(run_training());
  EXPECT_THAT(read_changes(), HasSubstr("model.freeze_projector: [1] → false"));
}

TEST_F(ResumeChangedTest, RejectsUnfreezingATowerWithoutAdapters) {
  config_.lora.rank = 2;
  config_.model.freeze_vision_tower = true;
  run_training();
  config_.training.max_steps = 6;
  config_.model.freeze_vision_tower = false;
  config_.resume_policy = ResumePolicy::kChanged;
  EXPECT_THAT(get_refusal(), AllOf(HasSubstr("model.freeze_vision_tower: was true, is false"), HasSubstr("adapters")));
}

}  // namespace

}  // namespace vlmtrain::train
