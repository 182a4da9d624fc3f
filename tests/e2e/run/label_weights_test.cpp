#include <cmath>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;

/// Runs over records whose answers have weights.
class LabelWeightsTest : public CommandTest {
 protected:
  /// Writes the records with the weights `weigh(i)` of the answers of record `i`; 1 is not written.
  void write_weights(const std::function<double(int)>& weigh) const {
    auto weighted = records();
    for (int i = 0; i < kRecords; ++i) {
      for (auto& turn : weighted[i]["conversations"]) {
        if (turn["from"] == "gpt" && weigh(i) != 1) turn["weight"] = weigh(i);
      }
    }
    write_records(weighted);
  }

  /// Weights of some records.
  static double weigh_some(int record) { return record % 3 == 0 ? 0.25 : record % 3 == 1 ? 0.6 : 1; }

  std::vector<double> get_losses(const std::string& run) const {
    std::vector<double> losses;
    for (const auto& step : step_lines(run + "/metrics.jsonl")) losses.push_back(step["loss"]);
    return losses;
  }

  std::vector<double> train_and_get_losses(const std::string& run, std::vector<std::string> settings) const {
    settings.push_back("output.dir=" + run);
    train_well(settings);
    return get_losses(run);
  }

  static void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i] / expected[i], 1, 1e-5) << i;
  }
};

/// The loss is a weighted mean, so a common factor cancels out.
TEST_F(LabelWeightsTest, EqualWeightsKeepTheLoss) {
  const auto plain = train_and_get_losses("plain", {});
  write_weights([](int /*record*/) { return 0.5; });
  expect_near(train_and_get_losses("half", {}), plain);
  const auto plain_steps = step_lines("plain/metrics.jsonl"), half_steps = step_lines("half/metrics.jsonl");
  for (size_t i = 0; i < plain_steps.size(); ++i) {
    EXPECT_EQ(half_steps[i]["label_tokens"], plain_steps[i]["label_tokens"]);
    EXPECT_EQ(half_steps[i]["label_weight"].get<double>(), half_steps[i]["label_tokens"].get<double>() / 2);
    EXPECT_FALSE(plain_steps[i].contains("label_weight"));
  }
}

TEST_F(LabelWeightsTest, WeightsOfOneChangeNoBit) {
  train_and_get_losses("plain", {});
  auto with_ones = records();
  for (auto& record : with_ones) {
    for (auto& turn : record["conversations"]) turn["weight"] = 1.0;
  }
  write_records(with_ones);
  train_and_get_losses("ones", {});
  EXPECT_EQ(read_text(folder() / "plain/checkpoints/step-4/model.safetensors"),
            read_text(folder() / "ones/checkpoints/step-4/model.safetensors"));
}

TEST_F(LabelWeightsTest, LossDoesNotDependOnSplitAndPacks) {
  write_weights(weigh_some);
  const auto expected = train_and_get_losses("one", {"training.global_batch_size=11", "training.micro_batch_size=11"});
  expect_near(train_and_get_losses("four", {"training.global_batch_size=11", "training.micro_batch_size=1"}), expected);
  expect_near(train_and_get_losses("packs", {"training.global_batch_size=1", "data.packing=true",
                                             "data.pack_max_tokens=100000", "data.pack_max_images=100"}),
              expected);
  write_records(records());
  const auto plain = train_and_get_losses("plain", {"training.global_batch_size=11"});
  EXPECT_GT(std::abs(plain[0] / expected[0] - 1), 1e-3) << "the weights changed nothing";
}

TEST_F(LabelWeightsTest, EvaluationIsTheWeightedMean) {
  write_weights(weigh_some);
  // All samples are in the step, whose loss is that of the weights before it.
  train_well({"training.global_batch_size=11", "training.max_steps=2", "training.eval_steps=1",
              "training.learning_rate=1e-3"});
  const auto steps = step_lines("run/metrics.jsonl");
  EXPECT_NEAR(steps[0]["evaluation"]["loss"].get<double>() / steps[1]["loss"].get<double>(), 1, 1e-5);
}

TEST_F(LabelWeightsTest, ResumesBitForBit) {
  write_weights(weigh_some);
  const std::vector<std::string> settings{"training.max_steps=6", "output.save_steps=3"};
  const auto expected = train_and_get_losses("whole", settings);
  train_and_get_losses("pieces", settings);
  std::filesystem::remove_all(folder() / "pieces/checkpoints/step-6");
  EXPECT_EQ(train_and_get_losses("pieces", settings), expected);
  EXPECT_EQ(read_text(folder() / "whole/checkpoints/step-6/model.safetensors"),
            read_text(folder() / "pieces/checkpoints/step-6/model.safetensors"));
}

/// Only some samples have weights, so some micro-batches have more tensors than others.
TEST_F(LabelWeightsTest, MemoryIsAsPredicted) {
  write_weights(weigh_some);
  const Result result = run({"--config", "train.yaml", "--device", "virtual:rtx4090", "training.precision=bf16",
                             "training.global_batch_size=8", "training.micro_batch_size=1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto plan = json_file(std::string(kVirtualRun) + "plan.json");
  for (const auto& step : step_lines(std::string(kVirtualRun) + "metrics.jsonl")) {
    EXPECT_EQ(step["predicted_allocated_peak_bytes"], step["allocated_peak_bytes"]);
    EXPECT_EQ(step["predicted_peak_bytes"], step["reserved_peak_bytes"]);
    EXPECT_LE(step["allocated_peak_bytes"], plan["memory"]["allocated_peak_bytes"]);
  }
}

TEST_F(LabelWeightsTest, InspectShowsTheWeight) {
  write_weights(weigh_some);
  const Result result = run({"inspect", "--config", "train.yaml"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("⟧×0.25"));
}

TEST_F(LabelWeightsTest, InvalidWeightsAreBadSamples) {
  write_weights([](int record) { return record == 2 ? 2 : 1; });
  const Result result = train({});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("has \"weight\": 2.0, which is not true, false or a number from 0 to 1"));
}

}  // namespace

}  // namespace vlmtrain::e2e
