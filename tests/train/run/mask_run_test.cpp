#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include "train/small_run.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::train {

namespace {

using testing::SizeIs;

/// Runs of a model that predicts masks, evaluated on its training data: an image with one mask and
/// one with two.
class MaskRunTest : public SmallRunTest {
 protected:
  MaskRunTest() {
    config_.model.path = folder() / "model";
    models::write_preset_checkpoint("prs-med-tiny", "", /*seed=*/1, config_.model.path);
    std::ofstream(folder() / "picture.png") << image::encode_png(at::full({3, 40, 64}, 90, at::kByte));
    const nlohmann::json liver{{"size", {40, 64}}, {"counts", {800, 900, 860}}, {"structure", "liver"}};
    const nlohmann::json bone{{"size", {40, 64}}, {"counts", {100, 500, 1960}}, {"structure", "bone"}};
    const auto record = [](const char* id, const char* answer, const nlohmann::json& masks) {
      return nlohmann::json{
          {"id", id},
          {"image", "picture.png"},
          {"conversations",
           {{{"from", "human"}, {"value", "<image>\nSegment."}}, {{"from", "gpt"}, {"value", answer}}}},
          {"masks", masks}};
    };
    const auto records = nlohmann::json::array(
        {record("one", "left <SEG>", nlohmann::json::array({liver})), record("two", "<SEG> <SEG>", {liver, bone})});
    std::ofstream(folder() / "data.json") << records.dump();
    config_.data.train = folder() / "data.json";
    config_.data.eval = folder() / "data.json";
    config_.data.image_root = folder();
    config_.training.global_batch_size = config_.training.micro_batch_size.emplace(2);
    config_.training.learning_rate = 1e-3;
    config_.evaluation.steps = 1;
    config_.evaluation.max_new_tokens = 2;
    config_.evaluation.best_metric = BestMetric::kDice;
    config_.output.num_sample_predictions = 2;
    config_.output.max_prediction_time_share = 1;
  }
};

TEST_F(MaskRunTest, ReportsMasksAndBestDice) {
  const auto summary = run_training();
  const auto lines = read_json_lines("metrics.jsonl");
  ASSERT_THAT(lines, SizeIs(kSteps));
  double max_dice = -1, best_loss = 0;
  for (const auto& line : lines) {
    EXPECT_GT(line["loss_parts"]["mask_dice"], 0);
    EXPECT_TRUE(line["mask_learning_rate"].is_number());
    const auto& evaluation = line["evaluation"];
    EXPECT_EQ(evaluation["masks"]["masks"], 3);
    EXPECT_EQ(evaluation["structures"]["liver"]["masks"], 2);
    const double dice = evaluation["masks"]["dice"];
    const double loss = evaluation["loss"];
    const bool is_best = dice > max_dice || (dice == max_dice && loss < best_loss);
    EXPECT_EQ(evaluation["is_best"], is_best);
    if (is_best) {
      max_dice = dice;
      best_loss = loss;
    }
  }
  EXPECT_EQ(summary.best_metric, "dice");
  EXPECT_EQ(summary.best_metric_value, max_dice);

  const auto predictions = read_json_lines("predictions.jsonl");
  ASSERT_FALSE(predictions.empty());
  for (const auto& prediction : predictions) {
    ASSERT_THAT(prediction["masks"], SizeIs(prediction["id"] == "two" ? 2 : 1));
    const auto& last = prediction["masks"].back();
    EXPECT_EQ(last["structure"], prediction["id"] == "two" ? "bone" : "liver");
    EXPECT_TRUE(last["overlay"].get<std::string>().starts_with("data:image/jpeg;base64,"));
    EXPECT_GE(last["dice"], 0);
  }
}

}  // namespace

}  // namespace vlmtrain::train
