#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include "train/small_run.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/train/run_changes.h"

namespace vlmtrain::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

/// A run of three steps that goes on with other settings (docs/resuming.md). Each step takes all four samples.
class GoingOnTest : public SmallRunTest {
 protected:
  GoingOnTest() {
    config_.training.lr_scheduler = engine::ScheduleShape::kLinear;
    config_.training.warmup_ratio = 0;
    config_.training.learning_rate = 1e-3;
    config_.output.keep = 9;
    config_.output.save_steps = 1;
  }

  void change_well() {
    config_.resume = Resume::kChanged;
    train_well();
    config_.resume = Resume::kAuto;
  }

  std::string refusal() const {
    try {
      train_well();
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return "it was taken";
  }

  std::string changes() const {
    std::string all;
    for (const auto& event : lines_of("events.jsonl")) {
      if (event["kind"] == "changed") all += event["message"].get<std::string>() + "\n";
    }
    return all;
  }

  double rate(size_t step) const { return lines_of("metrics.jsonl").at(step - 1)["learning_rate"]; }
  double epoch(size_t step) const { return lines_of("metrics.jsonl").at(step - 1)["epoch"]; }

  fs::path checkpoint(int64_t step) const { return run_folder() / "checkpoints" / fmt::format("step-{}", step); }
  nlohmann::json state(int64_t step) const {
    return nlohmann::json::parse(read_text(checkpoint(step) / "trainer_state/state.json"));
  }
  nlohmann::json ledger(const std::string& file) const { return nlohmann::json::parse(read_text(run_folder() / file)); }

  /// Whether the weights of a part are the same in two checkpoints.
  static bool is_same(const fs::path& one, const fs::path& other, std::string_view part) {
    const io::CheckpointTensors first(one), second(other);
    bool is_same = true;
    for (const auto& name : first.names()) {
      if (name.find(part) != std::string::npos) is_same &= at::equal(first.tensor(name), second.tensor(name));
    }
    return is_same;
  }
};

TEST_F(GoingOnTest, MoreStepsHaveTheScheduleOfTheirNumber) {
  train_well();
  config_.training.max_steps = 6;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("was 3, is 6"), HasSubstr("training.resume=changed")));
  change_well();
  ASSERT_THAT(lines_of("metrics.jsonl"), SizeIs(6));
  EXPECT_NEAR(rate(3), 1e-3 / 3, 1e-12);
  EXPECT_NEAR(rate(4), 1e-3 / 2, 1e-12) << "the fourth of six";
  EXPECT_EQ(lines_of("metrics.jsonl").back()["total_steps"], 6);
  EXPECT_THAT(changes(), AllOf(HasSubstr("step 3: "), HasSubstr(": 3 → 6"), HasSubstr("goes on at 0.0005"),
                               HasSubstr("6 steps in all"), Not(HasSubstr("start"))));
  EXPECT_EQ(state(6)["changed_at"], 3);
  EXPECT_EQ(state(6)["schedule_start"], 0);
}

TEST_F(GoingOnTest, AScheduleFromTheChangeSpansWhatIsLeft) {
  train_well();
  config_.training.max_steps = 7;
  config_.schedule_from = ScheduleFrom::kChange;
  change_well();
  for (size_t step = 4; step <= 7; ++step) EXPECT_NEAR(rate(step), 1e-3 * static_cast<double>(8 - step) / 4, 1e-12);
  EXPECT_EQ(state(7)["schedule_start"], 3);
  // It stays where it is, without the word and with a change of something else.
  fs::remove_all(checkpoint(7));
  fs::remove_all(checkpoint(6));
  train_well();
  EXPECT_NEAR(rate(6), 1e-3 / 2, 1e-12);
  fs::remove_all(checkpoint(7));
  config_.training.weight_decay = 0.1;
  change_well();
  EXPECT_NEAR(rate(7), 1e-3 / 4, 1e-12);
  EXPECT_EQ(state(7)["schedule_start"], 3);
  EXPECT_EQ(state(7)["changed_at"], 6);
  // Another rate begins it anew; from the start on it is that of all steps.
  fs::remove_all(checkpoint(7));
  config_.training.learning_rate = 2e-3;
  change_well();
  EXPECT_NEAR(rate(7), 2e-3, 1e-12);
  fs::remove_all(checkpoint(7));
  config_.schedule_from = ScheduleFrom::kStart;
  change_well();
  EXPECT_NEAR(rate(7), 2e-3 / 7, 1e-12);
}

TEST_F(GoingOnTest, EpochsCountTheDataSetAtHand) {
  config_.training.max_steps.reset();
  config_.training.epochs = 3;
  train_well();
  // Half the batch: what is left of five passes takes twice the steps.
  config_.training.epochs = 5;
  config_.training.global_batch_size = 2;
  config_.training.micro_batch_size = 2;
  change_well();
  EXPECT_THAT(lines_of("metrics.jsonl"), SizeIs(3 + 4));
  EXPECT_EQ(epoch(7), 5);
  // Two of the four, under another name.
  const auto records = nlohmann::json::parse(read_text(config_.data.train.name()));
  const fs::path other = folder() / "other.json";
  std::ofstream(other) << nlohmann::json{records[0], records[1]};
  config_.data.train = other;
  config_.training.epochs = 2;
  change_well();
  EXPECT_THAT(lines_of("metrics.jsonl"), SizeIs(7 + 2));
  EXPECT_EQ(epoch(8), 1);
  EXPECT_EQ(epoch(9), 2);
  EXPECT_EQ(ledger("ledger.json")["samples"], 2);
  EXPECT_EQ(ledger("ledger.json")["used"], 2);
  EXPECT_EQ(ledger("ledger-to-step-7.json")["samples"], 4);
  EXPECT_EQ(ledger("ledger-to-step-7.json")["used"], 4);
  EXPECT_FALSE(fs::exists(run_folder() / "ledger-to-step-3.json")) << "the data set was the same";
  EXPECT_THAT(changes(), AllOf(HasSubstr("samples in data.train: 4 → 2"), HasSubstr("ledger-to-step-7.json")));
  // It goes on without the word, at its place in the new data.
  fs::remove_all(checkpoint(9));
  train_well();
  EXPECT_EQ(epoch(9), 2);
  // All is done, so that another change would come too late.
  config_.training.weight_decay = 0.1;
  config_.resume = Resume::kChanged;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("has done 9 steps"), HasSubstr("training.epochs=2 asks for no more")));
}

TEST_F(GoingOnTest, AFrozenPartStaysAsItIsAndATrainedOneStartsAnew) {
  config_.model.freeze_projector = true;
  train_well();
  EXPECT_FALSE(is_same(checkpoint(1), checkpoint(3), "vision_model"));
  config_.training.max_steps = 6;
  config_.model.freeze_projector = false;
  config_.model.freeze_vision_tower = true;
  change_well();
  EXPECT_TRUE(is_same(checkpoint(3), checkpoint(6), "vision_model"));
  EXPECT_FALSE(is_same(checkpoint(3), checkpoint(6), "connector"));
  EXPECT_FALSE(is_same(checkpoint(3), checkpoint(6), "text_model"));
  EXPECT_THAT(changes(), AllOf(HasSubstr("model.freeze_projector: true → false"), HasSubstr("go on, those of"),
                               HasSubstr("start at zero")));
  EXPECT_EQ(state(6)["settled_parts"], nlohmann::json::array({"model.freeze_vision_tower"}));
  // So it is in what is resumed from there.
  fs::remove_all(checkpoint(6));
  fs::remove_all(checkpoint(5));
  train_well();
  EXPECT_TRUE(is_same(checkpoint(3), checkpoint(6), "vision_model"));
  EXPECT_EQ(state(6)["settled_parts"].size(), 1U);
}

TEST_F(GoingOnTest, WithNothingChangedOrInAnEmptyFolderTheWordIsAuto) {
  change_well();
  EXPECT_FALSE(state(3).contains("changed_at"));
  const auto straight = lines_of("metrics.jsonl");
  fs::remove_all(checkpoint(3));
  change_well();
  EXPECT_EQ(lines_of("metrics.jsonl").back()["loss"], straight.back()["loss"]);
  EXPECT_FALSE(state(3).contains("changed_at"));
  EXPECT_THAT(changes(), IsEmpty());
  EXPECT_TRUE(fs::exists(run_folder() / "ledger.json"));
}

/// Whatever a fingerprint was made to say, it is refused by a sentence, or a setting that differs.
TEST_F(GoingOnTest, AFingerprintThatWasChangedIsNoFault) {
  train_well();
  const auto file = checkpoint(3) / "trainer_state/state.json";
  const auto right = state(3);
  config_.training.max_steps = 4;
  config_.resume = Resume::kChanged;
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto wrong = right;
    wrong["fingerprint"][key] = value;
    std::ofstream(file) << wrong;
    fs::remove(file.parent_path() / "checksums.json");  // which would notice it
  };
  with(kSamplesKey, 7);
  EXPECT_THROW(train_well(), UserError) << "the ledger has four";
  with(kSamplesKey, "none");
  EXPECT_THROW(train_well(), UserError);
  with("model.freeze_projector", nlohmann::json::array({1}));
  EXPECT_NO_THROW(train_well());
  EXPECT_THAT(changes(), HasSubstr("model.freeze_projector: [1] → false"));
}

TEST_F(GoingOnTest, ATowerWithoutAdaptersCannotBeTrainedLater) {
  config_.lora.rank = 2;
  config_.model.freeze_vision_tower = true;
  train_well();
  config_.training.max_steps = 6;
  config_.model.freeze_vision_tower = false;
  config_.resume = Resume::kChanged;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("model.freeze_vision_tower: was true, is false"), HasSubstr("adapters")));
}

}  // namespace
}  // namespace vlmtrain::train
