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

TEST(StepMetricsTest, IsOneLineWithTheDocumentedKeys) {
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
  EXPECT_THAT(keys, testing::ElementsAre("step", "epoch", "loss", "learning_rate", "grad_norm", "tokens",
                                         "label_tokens", "images", "samples", "step_seconds", "data_wait_seconds",
                                         "tokens_per_second", "micro_batches", "oom_splits", "predicted_peak_bytes",
                                         "allocated_peak_bytes", "reserved_peak_bytes", "host_peak_bytes"));
  EXPECT_EQ(json["tokens_per_second"], 600);
  EXPECT_TRUE(json["predicted_peak_bytes"].is_null()) << "there is no plan";
  metrics.predicted_peak_bytes = 17;
  EXPECT_EQ(nlohmann::json::parse(metrics.to_json_line())["predicted_peak_bytes"], 17);
}

TEST(StepMetricsTest, NumbersReadBackAsTheSame) {
  StepMetrics metrics;
  metrics.loss = 0.1f;
  metrics.grad_norm = 1.0 / 3.0;
  const auto json = nlohmann::json::parse(metrics.to_json_line());
  EXPECT_EQ(json["loss"].get<double>(), metrics.loss);
  EXPECT_EQ(json["grad_norm"].get<double>(), metrics.grad_norm);
}

TEST(StepMetricsTest, ALossThatIsNoNumberIsStillJson) {
  StepMetrics metrics;
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(nlohmann::json::parse(metrics.to_json_line())["loss"].is_null());
}

class StepLinesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "vlmtrain_report_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path file() const { return folder_ / "metrics.jsonl"; }
  void put(const std::string& text) const { std::ofstream(file()) << text; }
  std::string content() const {
    std::ifstream stream(file());
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(StepLinesTest, ANewRunStartsAnEmptyFile) {
  StepLines lines(file(), 0);
  EXPECT_EQ(content(), "");
  lines.append(R"({"step":1})");
  EXPECT_EQ(content(), "{\"step\":1}\n") << "flushed at once";
}

TEST_F(StepLinesTest, AResumedRunDropsWhatLiesBehindItsCheckpoint) {
  put("{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  StepLines lines(file(), 2);
  lines.append(R"({"step":3,"again":true})");
  EXPECT_EQ(content(), "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"again\":true}\n");
}

TEST_F(StepLinesTest, ALineThatAKillCutOffIsDropped) {
  put("{\"step\":1}\n{\"step\":2,\"lo");
  const StepLines lines(file(), 2);
  EXPECT_EQ(content(), "{\"step\":1}\n");
}

TEST_F(StepLinesTest, LinesOfSomethingElseAreDropped) {
  put("{\"step\":1}\nnull\n[]\n7\n\n{\"stop\":1}\n");
  const StepLines lines(file(), 2);
  EXPECT_EQ(content(), "{\"step\":1}\n");
}

TEST_F(StepLinesTest, AFileThatCannotBeWrittenIsNamed) {
  try {
    const StepLines lines(file().parent_path() / "nowhere/metrics.jsonl", 0);
    ADD_FAILURE() << "it was written";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), HasSubstr("nowhere/metrics.jsonl"));
  }
}

}  // namespace
}  // namespace vlmtrain::report
