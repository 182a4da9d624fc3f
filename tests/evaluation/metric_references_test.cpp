// The metrics equal those of public implementations (tests/evaluation/data/metrics/SOURCES.md).

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

#include "evaluation/metrics/boxes.h"
#include "evaluation/metrics/text_metrics.h"
#include "vlmtrain/evaluation/metrics.h"

namespace vlmtrain::evaluation {
namespace {

constexpr double kTolerance = 1e-9;

nlohmann::json read_reference(const std::string& name) {
  std::ifstream file(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/evaluation/data/metrics" / name);
  return nlohmann::json::parse(file);
}

void expect_value(const std::optional<double>& value, const nlohmann::json& reference) {
  ASSERT_EQ(value.has_value(), !reference.is_null());
  if (!value) return;
  EXPECT_NEAR(*value, reference.get<double>(), kTolerance);
}

TEST(MetricReferencesTest, AnswerMetricsEqualTheReferences) {
  const nlohmann::json reference = read_reference("answers.json");
  ASSERT_GE(reference["cases"].size(), 500U);
  const MetricSettings settings{
      .metrics = {Metric::kCer, Metric::kWer, Metric::kAnls, Metric::kRelaxedAccuracy, Metric::kNumeric}};
  MetricSums total;
  for (const auto& answer : reference["cases"]) {
    SCOPED_TRACE(answer.dump());
    const MetricSums sums =
        score_answer_metrics(answer["expected"].get<std::string>(), answer["prediction"].get<std::string>(), settings);
    for (const auto& [name, value] : get_metric_values(sums)) expect_value(value, answer.at(name));
    add_metric_sums(total, sums);
  }
  expect_value(total.at(Metric::kCer).value(), reference["cer"]);
  expect_value(total.at(Metric::kWer).value(), reference["wer"]);
}

TEST(MetricReferencesTest, SelectedChoicesEqualTheReference) {
  const nlohmann::json reference = read_reference("choices.json");
  ASSERT_GE(reference["cases"].size(), 500U);
  for (const auto& answer : reference["cases"]) {
    const auto choice = find_selected_choice(answer["answer"].get<std::string>());
    EXPECT_EQ(choice ? nlohmann::json(std::string(1, *choice)) : nlohmann::json(), answer["choice"]) << answer;
  }
}

Box to_box(const nlohmann::json& corners) {
  return {corners[0], corners[1], corners[2], corners[3]};
}

TEST(MetricReferencesTest, BoxMetricsEqualTheReference) {
  const nlohmann::json reference = read_reference("boxes.json");
  for (const auto& pair : reference["pairs"])
    EXPECT_NEAR(compute_box_iou(to_box(pair["a"]), to_box(pair["b"])), pair["iou"].get<double>(), kTolerance) << pair;
  const MetricSettings settings{.metrics = {Metric::kBoxIou, Metric::kBoxAccuracy}};
  for (const auto& lists : reference["lists"]) {
    SCOPED_TRACE(lists.dump());
    const MetricSums sums = score_answer_metrics(lists["expected"].dump(), lists["predicted"].dump(), settings);
    expect_value(sums.at(Metric::kBoxIou).value(), lists["iou"]);
    expect_value(sums.at(Metric::kBoxAccuracy).value(), lists["accuracy"]);
  }
}

}  // namespace
}  // namespace vlmtrain::evaluation
