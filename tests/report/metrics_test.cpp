#include "vlmtrain/report/metrics.h"

#include <stdlib.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <iterator>
#include <limits>

#include "vlmtrain/base/error.h"

namespace vlmtrain::report {
namespace {

using testing::HasSubstr;

TEST(StepMetricsTest, IsOneJsonLineWithTheDocumentedKeys) {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.loss = 1.25;
  metrics.tokens = 300;
  metrics.step_seconds = 0.5;
  const std::string line = metrics.to_json_line();
  EXPECT_EQ(line.find('\n'), std::string::npos);
  std::vector<std::string> keys;
  const auto json = nlohmann::ordered_json::parse(line);
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys, testing::ElementsAre(
                        "step", "total_steps", "epoch", "loss", "learning_rate", "vision_learning_rate",
                        "projector_learning_rate", "grad_norm", "skipped", "skipped_steps", "loss_scale", "tokens",
                        "label_tokens", "images", "samples", "step_seconds", "data_wait_seconds", "tokens_per_second",
                        "micro_batches", "micro_batch_sizes", "forecast_splits", "oom_splits",
                        "predicted_allocated_peak_bytes", "predicted_peak_bytes", "allocated_peak_bytes",
                        "reserved_peak_bytes", "allocated_bytes", "reserved_bytes", "fragmentation_bytes",
                        "device_free_bytes", "host_bytes", "host_peak_bytes", "tasks", "foreseen_splits"));
  EXPECT_EQ(json["tasks"].dump(), "{}");
  EXPECT_EQ(json["micro_batch_sizes"].dump(), "[]");
  for (const char* key :
       {"loss_scale", "vision_learning_rate", "predicted_allocated_peak_bytes", "device_free_bytes"}) {
    EXPECT_TRUE(json[key].is_null()) << key;
  }
  EXPECT_EQ(json["tokens_per_second"], 600);
  EXPECT_TRUE(json["predicted_peak_bytes"].is_null()) << "there is no plan";
  metrics.predicted_reserved_peak_bytes = 17;
  EXPECT_EQ(nlohmann::json::parse(metrics.to_json_line())["predicted_peak_bytes"], 17);
}

TEST(StepMetricsTest, MicroBatchesMemoryAndTasks) {
  StepMetrics metrics;
  metrics.micro_batch_sizes = {4, 3, 1};
  metrics.allocated_bytes = 70;
  metrics.reserved_bytes = 100;
  metrics.device_free_bytes = 5;
  metrics.loss_scale = 1024;
  metrics.skipped = true;
  metrics.tasks["count"] = {.loss = 0.5, .label_tokens = 8, .samples = 2, .weight = 2, .accuracy = 0.75};
  metrics.tasks["read\xff"] = {.loss = std::numeric_limits<double>::infinity(), .label_tokens = 1, .samples = 1};
  const auto json = nlohmann::json::parse(metrics.to_json_line());
  EXPECT_EQ(json["micro_batch_sizes"].dump(), "[4,3,1]");
  EXPECT_EQ(json["fragmentation_bytes"], 30);
  EXPECT_EQ(json["device_free_bytes"], 5);
  EXPECT_EQ(json["loss_scale"], 1024);
  EXPECT_EQ(json["skipped"], true);
  EXPECT_EQ(json["tasks"]["count"].dump(), R"({"accuracy":0.75,"label_tokens":8,"loss":0.5,"samples":2,"weight":2.0})");
  EXPECT_TRUE(json["tasks"]["read\xef\xbf\xbd"]["loss"].is_null()) << "and bytes that are not UTF-8 are replaced";
}

TEST(StepMetricsTest, AnEvaluationIsWrittenWhereThereIsOne) {
  StepMetrics metrics;
  EXPECT_FALSE(nlohmann::json::parse(metrics.to_json_line()).contains("evaluation"));
  metrics.evaluation = EvaluationMetrics{.total = {.loss = 1.5, .label_tokens = 9, .samples = 3, .exact_match = 0.25},
                                         .seconds = 2.5,
                                         .batch_size = 16,
                                         .num_oom_splits = 1,
                                         .is_best = true};
  metrics.evaluation->tasks["read"] = {
      .loss = std::numeric_limits<double>::quiet_NaN(), .label_tokens = 2, .samples = 1};
  const auto json = nlohmann::json::parse(metrics.to_json_line());
  EXPECT_EQ(json["evaluation"].dump(),
            R"({"batch_size":16,"exact_match":0.25,"is_best":true,"label_tokens":9,"loss":1.5,"oom_splits":1,)"
            R"("samples":3,"seconds":2.5,"tasks":{"read":{"exact_match":null,"label_tokens":2,"loss":null,)"
            R"("samples":1}}})");
}

TEST(StepMetricsTest, MetricsOfAnswersAreWrittenWhereThereAreSome) {
  StepMetrics metrics;
  metrics.evaluation.emplace();
  metrics.evaluation->total.metrics = {{"anls", 0.5}, {"wer", std::nullopt}};
  metrics.evaluation->tasks["read"].metrics = {{"anls", 0.25}};
  metrics.evaluation->tasks["other"].samples = 1;
  const auto evaluation = nlohmann::json::parse(metrics.to_json_line())["evaluation"];
  EXPECT_EQ(evaluation["metrics"].dump(), R"({"anls":0.5,"wer":null})");
  EXPECT_EQ(evaluation["tasks"]["read"]["metrics"].dump(), R"({"anls":0.25})");
  EXPECT_FALSE(evaluation["tasks"]["other"].contains("metrics"));
}

TEST(StepMetricsTest, MasksAreWrittenWhereThereAreSome) {
  StepMetrics metrics;
  metrics.evaluation = EvaluationMetrics{.total = {.loss = 1.5}};
  const auto without = nlohmann::json::parse(metrics.to_json_line());
  for (const char* key : {"loss_parts", "mask_learning_rate"}) EXPECT_FALSE(without.contains(key));
  for (const char* key : {"masks", "structures"}) EXPECT_FALSE(without["evaluation"].contains(key));
  metrics.mask_learning_rate = 0.25;
  metrics.loss_components = LossComponents{.text = 1, .bce = 0.5, .dice = 0.75};
  metrics.evaluation->total.masks = MaskMetrics{
      .masks = 3, .dice = 0.5, .iou = 0.25, .hausdorff95 = 8, .num_empty_truths = 1, .num_empty_predictions = 2};
  metrics.evaluation->mask_metrics_by_structure["liver"] = {.masks = 1, .dice = 1, .iou = 1};
  const auto json = nlohmann::json::parse(metrics.to_json_line());
  EXPECT_EQ(json["mask_learning_rate"], 0.25);
  EXPECT_EQ(json["loss_parts"].dump(), R"({"mask_bce":0.5,"mask_dice":0.75,"text":1.0})");
  EXPECT_EQ(
      json["evaluation"]["masks"].dump(),
      R"({"dice":0.5,"empty_drawn":2,"empty_predictions":2,"empty_truths":1,"hausdorff95":8.0,"iou":0.25,"masks":3})");
  EXPECT_EQ(
      json["evaluation"]["structures"].dump(),
      R"({"liver":{"dice":1.0,"empty_drawn":0,"empty_predictions":0,"empty_truths":0,"hausdorff95":null,"iou":1.0,"masks":1}})");
}

TEST(StepMetricsTest, NumbersReadBackAsTheSame) {
  StepMetrics metrics;
  metrics.loss = 0.1f;
  metrics.grad_norm = 1.0 / 3.0;
  const auto json = nlohmann::json::parse(metrics.to_json_line());
  EXPECT_EQ(json["loss"].get<double>(), metrics.loss);
  EXPECT_EQ(json["grad_norm"].get<double>(), metrics.grad_norm);
}

TEST(StepMetricsTest, ANanLossIsValidJson) {
  StepMetrics metrics;
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(nlohmann::json::parse(metrics.to_json_line())["loss"].is_null());
}

class StepLogTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "vlmtrain_report_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path file() const { return folder_ / "metrics.jsonl"; }
  void write(const std::string& text) const { std::ofstream(file()) << text; }
  std::string content() const {
    std::ifstream stream(file());
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(StepLogTest, ANewRunStartsAnEmptyFile) {
  StepLog lines(file(), 0);
  EXPECT_EQ(content(), "");
  lines.append(R"({"step":1})");
  EXPECT_EQ(content(), "{\"step\":1}\n") << "flushed at once";
}

TEST_F(StepLogTest, AResumedRunDropsTheLinesAfterItsCheckpoint) {
  write("{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  StepLog lines(file(), 2);
  lines.append(R"({"step":3,"again":true})");
  EXPECT_EQ(content(), "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"again\":true}\n");
}

TEST_F(StepLogTest, ATruncatedLineIsDropped) {
  write("{\"step\":1}\n{\"step\":2,\"lo");
  const StepLog lines(file(), 2);
  EXPECT_EQ(content(), "{\"step\":1}\n");
}

TEST_F(StepLogTest, OtherLinesAreDropped) {
  write("{\"step\":1}\nnull\n[]\n7\n\n{\"stop\":1}\n");
  const StepLog lines(file(), 2);
  EXPECT_EQ(content(), "{\"step\":1}\n");
}

TEST_F(StepLogTest, AFileThatCannotBeWrittenIsReported) {
  try {
    const StepLog lines(file().parent_path() / "nowhere/metrics.jsonl", 0);
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), HasSubstr("nowhere/metrics.jsonl"));
  }
}

}  // namespace
}  // namespace vlmtrain::report
