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

StepMetrics metrics_of(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 2.5;
  metrics.learning_rate = 1e-4;
  metrics.tokens = 1000;
  metrics.step_seconds = 0.5;
  return metrics;
}

/// What a run of `steps` prints where stderr is a file.
std::string printed(int64_t steps, bool quiet) {
  testing::internal::CaptureStderr();
  {
    Progress progress(steps, quiet);
    for (int64_t step = 1; step <= steps; ++step) progress.show(metrics_of(step));
    progress.clear();
  }
  return testing::internal::GetCapturedStderr();
}

/// What it prints on a terminal of so many columns.
std::string drawn(int64_t steps, int columns) {
  int terminal = -1;
  int other_end = -1;
  winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
  if (openpty(&other_end, &terminal, nullptr, nullptr, &size) != 0) return "no pseudo terminal";
  const int stderr_before = dup(STDERR_FILENO);
  dup2(terminal, STDERR_FILENO);
  {
    Progress progress(steps, /*quiet=*/false);
    for (int64_t step = 1; step <= steps; ++step) progress.show(metrics_of(step));
  }
  std::fflush(stderr);
  dup2(stderr_before, STDERR_FILENO);
  close(stderr_before);
  close(terminal);
  std::string text;
  std::array<char, 4096> piece{};
  for (ssize_t size_read = 1; size_read > 0;) {  // an error is the end, as pseudo terminals have it
    size_read = read(other_end, piece.data(), piece.size());
    text.append(piece.data(), static_cast<size_t>(std::max<ssize_t>(0, size_read)));
  }
  close(other_end);
  return text;
}

TEST(ProgressTest, PlainLinesWhereThereIsNoTerminal) {
  const std::string text = printed(100, /*quiet=*/false);
  EXPECT_THAT(text, testing::StartsWith("step 1/100  loss 2.5000  lr 1.00e-04"));
  EXPECT_THAT(text, HasSubstr("2000 tokens/s"));
  EXPECT_THAT(text, HasSubstr("step 100/100")) << "the last step is always shown";
  EXPECT_THAT(text, EndsWith("0:00 left\n"));
  EXPECT_EQ(text.find_first_of("\r\033"), std::string::npos);
  EXPECT_THAT(text, Not(HasSubstr("step 50/100"))) << "a line every few seconds, not one a step";
}

TEST(ProgressTest, QuietPrintsNothing) {
  EXPECT_EQ(printed(3, /*quiet=*/true), "");
}

class ProgressTerminalTest : public testing::TestWithParam<int> {};

TEST_P(ProgressTerminalTest, TheBarStaysOnItsLine) {
  const std::string text = drawn(3, GetParam());
  EXPECT_THAT(text, HasSubstr("step 3/3"));
  EXPECT_THAT(text, EndsWith("\n")) << "what follows has a line of its own";
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

TEST(ProgressTerminalTest, AWideOneHasABar) {
  const std::string text = drawn(2, 160);
  EXPECT_THAT(text, HasSubstr("[###############...............] step 1/2"));
  EXPECT_THAT(text, HasSubstr("[##############################] step 2/2"));
}

StepMetrics metrics_on_a_card() {
  StepMetrics metrics = metrics_of(7);
  metrics.grad_norm = 1.5;
  metrics.reserved_peak_bytes = 12'300'000'000;
  metrics.predicted_peak_bytes = 12'900'000'000;
  return metrics;
}

TEST(ProgressLineTest, MeasuredAndPlannedMemory) {
  EXPECT_EQ(progress_line(metrics_on_a_card(), 90, 3725.0, 0, 200),
            "step 7/90  loss 2.5000  lr 1.00e-04  grad 1.50  2000 tokens/s  12.3/12.9 GB  1:02:05 left");
  StepMetrics metrics = metrics_on_a_card();
  metrics.predicted_peak_bytes = {};
  EXPECT_THAT(progress_line(metrics, 90, {}, 0, 200), EndsWith("2000 tokens/s  12.3 GB"));
  metrics.reserved_peak_bytes = 0;
  metrics.host_peak_bytes = 3 << 20;
  EXPECT_THAT(progress_line(metrics, 90, {}, 0, 200), EndsWith("2000 tokens/s  3.0 MiB")) << "on the CPU";
}

TEST(ProgressLineTest, ARehearsalHasNoValues) {
  StepMetrics metrics = metrics_on_a_card();
  metrics.loss = metrics.grad_norm = std::nan("");
  EXPECT_THAT(progress_line(metrics, 90, {}, 0, 200), HasSubstr("loss nan")) << "in a run it is news";
  metrics.rehearsed = true;
  EXPECT_EQ(progress_line(metrics, 90, 3725.0, 0, 200),
            "step 7/90  loss -  lr 1.00e-04  grad -  2000 tokens/s  12.3/12.9 GB  1:02:05 left");
}

TEST(ProgressLineTest, Incidents) {
  StepMetrics metrics = metrics_on_a_card();
  metrics.skipped_steps = 2;
  EXPECT_THAT(progress_line(metrics, 90, 5.0, 1, 200), EndsWith("0:05 left  1 OOM split  2 skipped"));
  EXPECT_THAT(progress_line(metrics, 90, 5.0, 3, 200), HasSubstr("3 OOM splits"));
}

TEST(ProgressLineTest, WhatMattersLessGoesFirst) {
  EXPECT_EQ(progress_line(metrics_on_a_card(), 90, 5.0, 0, 70),
            "step 7/90  loss 2.5000  2000 tokens/s  12.3/12.9 GB  0:05 left");
  EXPECT_EQ(progress_line(metrics_on_a_card(), 90, 5.0, 0, 36), "step 7/90  loss 2.5000  0:05 left");
  EXPECT_EQ(progress_line(metrics_on_a_card(), 90, 5.0, 0, 12), "step 7/90");
}

TEST(EvaluationLineTest, SaysWhatTheModelIsWorthAndWhichWasBest) {
  StepMetrics metrics = metrics_of(200);
  metrics.evaluation = EvaluationMetrics{.total = {.loss = 1.2344}, .tasks = {}, .seconds = 12.3, .is_best = true};
  EXPECT_EQ(evaluation_line(metrics), "step 200: validation loss 1.234, 12 s") << "the first";
  metrics.evaluation->total.exact_match = 0.412;
  const EvaluationBefore before{.step = 100, .loss = 1.301, .exact_match = 0.4};
  EXPECT_EQ(evaluation_line(metrics, before),
            "step 200: validation loss 1.234 (best so far, before 1.301 at step 100), exact match 41.2 %, 12 s");
  EXPECT_EQ(evaluation_line(metrics, before, BestBy::kExactMatch),
            "step 200: validation loss 1.234, exact match 41.2 % (best so far, before 40.0 % at step 100), 12 s");
  metrics.evaluation->is_best = false;
  metrics.evaluation->seconds = 0.25;
  EXPECT_EQ(evaluation_line(metrics, before),
            "step 200: validation loss 1.234 (best 1.301 at step 100), exact match 41.2 %, 0.2 s");
  metrics.rehearsed = true;
  EXPECT_EQ(evaluation_line(metrics, before), "step 200: validation loss -, 0.2 s") << "a virtual card has no values";
}

TEST(EvaluationLineTest, SaysTheDiceOfMasks) {
  StepMetrics metrics = metrics_of(200);
  metrics.evaluation = EvaluationMetrics{
      .total = {.loss = 1.25, .exact_match = 0.5, .masks = MaskMetrics{.masks = 4, .dice = 0.8731}}, .is_best = true};
  EXPECT_EQ(evaluation_line(metrics), "step 200: validation loss 1.25, exact match 50.0 %, Dice 0.873, 0.0 s");
  const EvaluationBefore before{.step = 100, .loss = 1, .dice = 0.75};
  EXPECT_EQ(evaluation_line(metrics, before, BestBy::kDice),
            "step 200: validation loss 1.25, exact match 50.0 %, Dice 0.873 (best so far, before 0.750 at step 100), "
            "0.0 s");
  EXPECT_EQ(evaluation_before(200, metrics.evaluation->total).dice, 0.8731);
  metrics.rehearsed = true;
  EXPECT_EQ(evaluation_line(metrics, before, BestBy::kDice), "step 200: validation loss -, 0.0 s");
}

TEST(TimeLeftTest, FollowsTheLastSteps) {
  TimeLeft left;
  std::chrono::steady_clock::time_point now{};
  left.step_done(now);
  EXPECT_FALSE(left.seconds(10)) << "one point in time is no duration";
  left.step_done(now += std::chrono::seconds(100));
  EXPECT_EQ(left.seconds(10), 1000);
  for (int step = 0; step < 50; ++step) left.step_done(now += std::chrono::seconds(2));
  EXPECT_EQ(left.seconds(10), 20) << "the slow one is forgotten";
  EXPECT_EQ(left.seconds(0), 0);
}

}  // namespace
}  // namespace vlmtrain::report
