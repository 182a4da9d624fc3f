#include <cstdlib>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Runs of a small model that predicts masks, on 20 images of scripts/make_organs.py.
class MasksTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    const std::string script = std::string(VLMTRAIN_SOURCE_DIR) + "/scripts/make_organs.py";
    const std::string command = "/usr/bin/python3 " + script + " --pictures 8 --held-out 5 --out " +
                                (folder() / "data").string() + " > /dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    ASSERT_EQ(run({"init", "--preset", "prs-med-tiny", "--out", "model"}).exit_code, 0);
    write_text(folder() / "train.yaml",
               "model: {path: model}\n"
               "data: {train: data/train.json, eval: data/held_out.json, image_root: data, max_length: 256,\n"
               "  augment: {flip: 0.3, rotation: 10, brightness: 0.2}}\n"
               "training: {global_batch_size: 4, max_steps: 8, learning_rate: 1.0e-3, precision: fp32}\n"
               "output: {dir: run}\n");
  }

  size_t steps_logged(const std::string& dir) const {
    return split_lines(read_text(folder() / dir / "metrics.jsonl")).size();
  }

  nlohmann::json held_out() const { return nlohmann::json::parse(read_text(folder() / "data/held_out.json")); }
  /// Trains on held-out records in place of the run's own.
  Result train_on_records(const nlohmann::json& records) const {
    write_text(folder() / "other.json", records.dump());
    return train({"data.train=other.json", "output.dir=other"});
  }
};

TEST_F(MasksTest, ResumesExactlyAfterAnInterrupt) {
  train_well({"output.dir=whole"});
  const auto arguments = train_arguments({"output.dir=pieces"});
  Process first(folder(), arguments);
  wait_until(first, [&] { return steps_logged("pieces") >= 2; });
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 75);
  train_well({"output.dir=pieces"});
  const auto uninterrupted = step_lines("whole/metrics.jsonl"), resumed = step_lines("pieces/metrics.jsonl");
  ASSERT_EQ(uninterrupted.size(), 8U);
  ASSERT_EQ(resumed.size(), 8U);
  for (size_t i = 0; i < uninterrupted.size(); ++i) {
    for (const char* key : {"loss", "loss_parts", "grad_norm", "mask_learning_rate"}) {
      EXPECT_EQ(uninterrupted[i][key].dump(), resumed[i][key].dump()) << key << " of step " << i + 1;
    }
  }
  const std::string weights = "checkpoints/step-8/model.safetensors";
  EXPECT_EQ(read_text(folder() / "whole" / weights), read_text(folder() / "pieces" / weights));
}

TEST_F(MasksTest, EvaluationsScoreThem) {
  const Result result = run({"eval", "--config", "train.yaml", "--checkpoint", "model", "--json", "--device", "cpu"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto masks = nlohmann::json::parse(result.out)["masks"];
  EXPECT_EQ(masks["masks"], 5);
  EXPECT_GE(masks["dice"], 0.0);
  EXPECT_LE(masks["dice"], 1.0);
  EXPECT_EQ(masks["by_structure"].size(), 5U);
  EXPECT_EQ(masks["by_task"]["one"]["masks"], 5);
}

TEST_F(MasksTest, AdaptersIncludeTheMaskDecoder) {
  train_well({"lora.rank=4", "training.max_steps=2", "output.dir=lora", "model.freeze_mask_encoder=true"});
  const Result result =
      run({"eval", "--config", "train.yaml", "--checkpoint", "lora/checkpoints/step-2", "--json", "--device", "cpu"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["masks"]["masks"], 5);
  const auto adapter = read_text(folder() / "lora/checkpoints/step-2/adapter_model.safetensors");
  EXPECT_NE(adapter.find("mask_decoder"), std::string::npos);
  EXPECT_EQ(adapter.find("vision_encoder"), std::string::npos) << "frozen";
}

TEST_F(MasksTest, NamesBadRecords) {
  auto records = held_out();
  records[1]["masks"][0] = {{"size", {128, 128}}, {"counts", {100, 50}}};
  Result result = train_on_records(records);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AllOf(HasSubstr("held_out_00001"), HasSubstr("mask 1"), HasSubstr("150")));
  records = held_out();
  records[2]["masks"].push_back(records[2]["masks"][0]);
  result = train_on_records(records);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AllOf(HasSubstr("held_out_00002"), HasSubstr("2 masks and 1 tokens <SEG>")));
  records = held_out();
  records[3]["masks"][0] = {{"size", {64, 128}}, {"counts", {64 * 128}}};
  result = train_on_records(records);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("held_out_00003"), HasSubstr("128 x 64 pixels, but its image has 128 x 128")));
}

TEST_F(MasksTest, ForecastsMemoryExactly) {
  const Result result = run({"--config", "train.yaml", "--device", "virtual:rtx4090", "training.max_steps=3",
                             "training.precision=bf16", "memory.mode=aggressive"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const auto& step : step_lines(std::string(kVirtualRun) + "metrics.jsonl")) {
    EXPECT_EQ(step["reserved_peak_bytes"], step["predicted_peak_bytes"]) << "step " << step["step"];
    EXPECT_EQ(step["oom_splits"], 0);
  }
}

}  // namespace

}  // namespace vlmtrain::e2e
