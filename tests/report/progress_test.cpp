#include "vlmtrain/report/progress.h"

#include <pty.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace vlmtrain::report {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

StepMetrics make_metrics(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 2.5;
  metrics.learning_rate = 1e-4;
  metrics.tokens = 1000;
  metrics.step_seconds = 0.5;
  return metrics;
}

/// Returns the output of a run of `steps` steps if stderr is a file.
std::string capture_plain_output(int64_t steps, bool quiet) {
  testing::internal::CaptureStderr();
  {
    ProgressBar progress(steps, quiet);
    for (int64_t step = 1; step <= steps; ++step) progress.show(make_metrics(step));
    progress.clear();
  }
  return testing::internal::GetCapturedStderr();
}

/// Returns its output on a terminal of this width.
std::string capture_terminal_output(int64_t steps, int columns) {
  int terminal = -1;
  int controller = -1;
  winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
  if (openpty(&controller, &terminal, nullptr, nullptr, &size) != 0) return "no pseudo terminal";
  const int saved_stderr = dup(STDERR_FILENO);
  dup2(terminal, STDERR_FILENO);
  {
    ProgressBar progress(steps, /*quiet=*/false);
    for (int64_t step = 1; step <= steps; ++step) progress.show(make_metrics(step));
  }
  std::fflush(stderr);
  dup2(saved_stderr, STDERR_FILENO);
  close(saved_stderr);
  close(terminal);
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t num_read = 1; num_read > 0;) {  // pseudo terminals signal the end as an error
    num_read = read(controller, buffer.data(), buffer.size());
    text.append(buffer.data(), static_cast<size_t>(std::max<ssize_t>(0, num_read)));
  }
  close(controller);
  return text;
}

TEST(ProgressTest, PrintsPlainLinesWithoutATerminal) {
  const std::string text = capture_plain_output(100, /*quiet=*/false);
  EXPECT_THAT(text, testing::StartsWith("step 1/100  loss 2.5000  lr 1.00e-04"));
  EXPECT_THAT(text, HasSubstr("2000 tokens/s"));
  EXPECT_THAT(text, HasSubstr("step 100/100")) << "the last step is always shown";
  EXPECT_THAT(text, EndsWith("0:00 left\n"));
  EXPECT_EQ(text.find_first_of("\r\033"), std::string::npos);
  EXPECT_THAT(text, Not(HasSubstr("step 50/100"))) << "a line every few seconds, not per step";
}

TEST(ProgressTest, QuietPrintsNothing) {
  EXPECT_EQ(capture_plain_output(3, /*quiet=*/true), "");
}

class ProgressTerminalTest : public testing::TestWithParam<int> {};

TEST_P(ProgressTerminalTest, TheBarStaysOnItsLine) {
  const std::string text = capture_terminal_output(3, GetParam());
  EXPECT_THAT(text, HasSubstr("step 3/3"));
  EXPECT_THAT(text, EndsWith("\n")) << "later output starts on a new line";
  std::string line;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 4, "\r\x1b[K") == 0) {
      line.clear();
      i += 3;
    } else if (text[i] != '\r' && text[i] != '\n') {
      line += text[i];
      EXPECT_LT(line.size(), static_cast<size_t>(GetParam())) << line;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Columns, ProgressTerminalTest, testing::Values(20, 40, 80, 120, 200));

TEST(ProgressTerminalTest, AWideTerminalHasABar) {
  const std::string text = capture_terminal_output(2, 160);
  EXPECT_THAT(text, HasSubstr("[###############...............] step 1/2"));
  EXPECT_THAT(text, HasSubstr("[##############################] step 2/2"));
}

StepMetrics make_gpu_metrics() {
  StepMetrics metrics = make_metrics(7);
  metrics.grad_norm = 1.5;
  metrics.reserved_peak_bytes = 12'300'000'000;
  metrics.predicted_reserved_peak_bytes = 12'900'000'000;
  return metrics;
}

TEST(FormatProgressLineTest, MeasuredAndPlannedMemory) {
  EXPECT_EQ(format_progress_line(make_gpu_metrics(), 90, 3725.0, 0, 200),
            "step 7/90  loss 2.5000  lr 1.00e-04  grad 1.50  2000 tokens/s  12.3/12.9 GB  1:02:05 left");
  StepMetrics metrics = make_gpu_metrics();
  metrics.predicted_reserved_peak_bytes = {};
  EXPECT_THAT(format_progress_line(metrics, 90, {}, 0, 200), EndsWith("2000 tokens/s  12.3 GB"));
  metrics.reserved_peak_bytes = 0;
  metrics.host_peak_bytes = 3 << 20;
  EXPECT_THAT(format_progress_line(metrics, 90, {}, 0, 200), EndsWith("2000 tokens/s  3.0 MiB")) << "on the CPU";
}

TEST(FormatProgressLineTest, ADryRunHasNoValues) {
  StepMetrics metrics = make_gpu_metrics();
  metrics.loss = metrics.grad_norm = std::nan("");
  EXPECT_THAT(format_progress_line(metrics, 90, {}, 0, 200), HasSubstr("loss nan")) << "NaN is reported in a run";
  metrics.is_dry_run = true;
  EXPECT_EQ(format_progress_line(metrics, 90, 3725.0, 0, 200),
            "step 7/90  loss -  lr 1.00e-04  grad -  2000 tokens/s  12.3/12.9 GB  1:02:05 left");
}

TEST(FormatProgressLineTest, ReportsIncidents) {
  StepMetrics metrics = make_gpu_metrics();
  metrics.num_skipped_steps = 2;
  EXPECT_THAT(format_progress_line(metrics, 90, 5.0, 1, 200), EndsWith("0:05 left  1 OOM split  2 skipped"));
  EXPECT_THAT(format_progress_line(metrics, 90, 5.0, 3, 200), HasSubstr("3 OOM splits"));
}

TEST(FormatProgressLineTest, DropsLessImportantPartsFirst) {
  EXPECT_EQ(format_progress_line(make_gpu_metrics(), 90, 5.0, 0, 70),
            "step 7/90  loss 2.5000  2000 tokens/s  12.3/12.9 GB  0:05 left");
  EXPECT_EQ(format_progress_line(make_gpu_metrics(), 90, 5.0, 0, 36), "step 7/90  loss 2.5000  0:05 left");
  EXPECT_EQ(format_progress_line(make_gpu_metrics(), 90, 5.0, 0, 12), "step 7/90");
}

TEST(FormatEvaluationLineTest, ReportsTheScoresAndTheBest) {
  StepMetrics metrics = make_metrics(200);
  metrics.evaluation = EvaluationMetrics{.total = {.loss = 1.2344}, .tasks = {}, .seconds = 12.3, .is_best = true};
  EXPECT_EQ(format_evaluation_line(metrics), "step 200: validation loss 1.234, 12 s") << "the first";
  metrics.evaluation->total.exact_match = 0.412;
  const EvaluationBaseline baseline{.step = 100, .loss = 1.301, .exact_match = 0.4};
  EXPECT_EQ(format_evaluation_line(metrics, baseline),
            "step 200: validation loss 1.234 (best so far, before 1.301 at step 100), exact match 41.2 %, 12 s");
  EXPECT_EQ(format_evaluation_line(metrics, baseline, {"exact_match", false}),
            "step 200: validation loss 1.234, exact match 41.2 % (best so far, before 40.0 % at step 100), 12 s");
  metrics.evaluation->is_best = false;
  metrics.evaluation->seconds = 0.25;
  EXPECT_EQ(format_evaluation_line(metrics, baseline),
            "step 200: validation loss 1.234 (best 1.301 at step 100), exact match 41.2 %, 0.2 s");
  metrics.is_dry_run = true;
  EXPECT_EQ(format_evaluation_line(metrics, baseline), "step 200: validation loss -, 0.2 s")
      << "a virtual GPU has no values";
}

TEST(FormatEvaluationLineTest, ComparesMetricsOfAnswers) {
  StepMetrics metrics = make_metrics(200);
  metrics.evaluation = EvaluationMetrics{
      .total = {.loss = 1.25, .metrics = {{"anls", 0.75}, {"cer", 0.2}, {"wer", std::nullopt}}}, .is_best = true};
  const EvaluationBaseline baseline{.step = 100, .loss = 1, .metrics = {{"anls", 0.5}, {"cer", 0.3}, {"wer", 0.4}}};
  EXPECT_EQ(format_evaluation_line(metrics, baseline, {"anls", false}),
            "step 200: validation loss 1.25, anls 0.75 (best so far, before 0.5 at step 100), cer 0.2, 0.0 s");
  const BestMetric word_error_rate{"wer", true};
  EXPECT_EQ(word_error_rate.find_value(baseline), 0.4);
  EXPECT_EQ(word_error_rate.find_value(make_evaluation_baseline(200, metrics.evaluation->total)), std::nullopt);
  EXPECT_EQ((BestMetric{"numeric", false}.find_value(baseline)), std::nullopt);
}

TEST(FormatEvaluationLineTest, ReportsTheDiceScore) {
  StepMetrics metrics = make_metrics(200);
  metrics.evaluation = EvaluationMetrics{
      .total = {.loss = 1.25, .exact_match = 0.5, .masks = MaskMetrics{.masks = 4, .dice = 0.8731}}, .is_best = true};
  EXPECT_EQ(format_evaluation_line(metrics), "step 200: validation loss 1.25, exact match 50.0 %, Dice 0.873, 0.0 s");
  const EvaluationBaseline baseline{.step = 100, .loss = 1, .dice = 0.75};
  EXPECT_EQ(format_evaluation_line(metrics, baseline, {"dice", false}),
            "step 200: validation loss 1.25, exact match 50.0 %, Dice 0.873 (best so far, before 0.750 at step 100), "
            "0.0 s");
  EXPECT_EQ(make_evaluation_baseline(200, metrics.evaluation->total).dice, 0.8731);
  metrics.is_dry_run = true;
  EXPECT_EQ(format_evaluation_line(metrics, baseline, {"dice", false}), "step 200: validation loss -, 0.0 s");
}

TEST(RemainingTimeEstimatorTest, FollowsTheLastSteps) {
  RemainingTimeEstimator estimator;
  std::chrono::steady_clock::time_point now{};
  estimator.record_step(now);
  EXPECT_FALSE(estimator.estimate_remaining_seconds(10)) << "one time gives no duration";
  estimator.record_step(now += std::chrono::seconds(100));
  EXPECT_EQ(estimator.estimate_remaining_seconds(10), 1000);
  for (int step = 0; step < 50; ++step) estimator.record_step(now += std::chrono::seconds(2));
  EXPECT_EQ(estimator.estimate_remaining_seconds(10), 20) << "the slow step left the window";
  EXPECT_EQ(estimator.estimate_remaining_seconds(0), 0);
}

}  // namespace
}  // namespace vlmtrain::report
