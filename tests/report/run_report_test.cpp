#include "vlmtrain/report/run_report.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ctime>
#include <limits>

#include "report/run_example.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::report {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(RunReportTest, ANewRunHasAPage) {
  const RunFolder run;
  run.write("config.yaml", "model:\n  path: m\n");
  const auto data = render_and_parse(run);
  EXPECT_EQ(data["state"], "running");
  EXPECT_EQ(data["summary"]["step"], 0);
  EXPECT_EQ(data["curves"]["bins"], 0);
  EXPECT_TRUE(data["plan"].is_null());
  EXPECT_TRUE(data["ledger"].is_null());
  EXPECT_EQ(data["config"], "model:\n  path: m\n");
}

TEST(RunReportTest, AFolderWithoutARunIsRejected) {
  const RunFolder run;
  EXPECT_THROW(render_run_report(run.path()), UserError);
  EXPECT_THROW(write_run_report(run.path() / "nowhere"), UserError);
  EXPECT_TRUE(std::filesystem::is_empty(run.path()));
}

TEST(RunReportTest, AnUnexpectedPipeIsReported) {
  for (const std::string name : {"metrics.jsonl", "events.jsonl", "plan.json", "ledger.json"}) {
    const RunFolder run;
    run.write("config.yaml", "model:\n  path: m\n");
    ASSERT_EQ(mkfifo((run.path() / name).c_str(), 0600), 0);
    try {
      render_run_report(run.path());
      ADD_FAILURE() << name << " was read";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      EXPECT_THAT(error.what(), HasSubstr(name + ": is a named pipe"));
    }
  }
}

TEST(RunReportTest, FilesThatAreDamagedAreReported) {
  const RunFolder run;
  run.append_steps(1, 2, 5);
  EXPECT_THAT(write_run_report(run.path()), IsEmpty());
  run.append("metrics.jsonl", "{\"step\": 3, \"loss\"\n");
  run.append_steps(4, 4, 5);
  run.append("metrics.jsonl", "4.5\n{\"step\": 5");  // the last line may still be written
  run.write("events.jsonl", "\n[]\n");
  run.write("plan.json", "{\"device\": ");
  run.write("ledger.json", "[]");
  const std::string folder = run.path().string();
  EXPECT_THAT(write_run_report(run.path()),
              ElementsAre(folder + "/metrics.jsonl: 2 lines are damaged, the first is line 3; the report omits them",
                          folder + "/events.jsonl: line 2 is damaged; the report omits it",
                          folder + "/plan.json: is not a JSON object; the report omits it",
                          folder + "/ledger.json: is not a JSON object; the report omits it"));
  EXPECT_EQ(render_and_parse(run)["summary"]["step"], 4);
}

TEST(RunReportTest, FilesThatCannotBeOpenedAreReported) {
  const RunFolder run;
  run.write("config.yaml", "model:\n  path: m\n");
  for (const char* const name : {"metrics.jsonl", "predictions.jsonl"}) {
    std::filesystem::create_symlink(name, run.path() / name);  // a link to itself, which no user can open
  }
  EXPECT_THAT(write_run_report(run.path()),
              ElementsAre(AllOf(HasSubstr("metrics.jsonl: cannot be read ("), HasSubstr("the report omits it")),
                          HasSubstr("predictions.jsonl: cannot be read (")));
  if (geteuid() == 0) return;  // root may read each file
  std::filesystem::remove(run.path() / "metrics.jsonl");
  run.append_steps(1, 2, 5);
  std::filesystem::permissions(run.path() / "metrics.jsonl", std::filesystem::perms::none);
  EXPECT_THAT(write_run_report(run.path()), Contains(HasSubstr("metrics.jsonl: cannot be read (Permission denied)")));
}

TEST(RunReportTest, EachStepIsAPointOfAShortRun) {
  const RunFolder run;
  run.append_steps(1, 50, 50);
  const auto data = render_and_parse(run);
  const auto& curves = data["curves"];
  EXPECT_EQ(curves["width"], 1);
  ASSERT_EQ(curves["loss"]["mean"].size(), 50u);
  EXPECT_FALSE(curves["loss"].contains("min"));
  for (int64_t step = 1; step <= 50; ++step) {
    const auto expected = RunFolder::example_step(step, 50);
    const auto i = static_cast<size_t>(step - 1);
    EXPECT_NEAR(curves["loss"]["mean"][i], expected.loss, 1e-4);
    EXPECT_NEAR(curves["allocated_peak_bytes"]["mean"][i], static_cast<double>(expected.allocated_peak_bytes), 1e6);
    EXPECT_NEAR(curves["data_wait_share"]["mean"][i], 0.02, 1e-9);
    EXPECT_EQ(curves["micro_batch_size"]["mean"][i], 4);
  }
  EXPECT_FALSE(curves.contains("loss_scale")) << "not fp16";
  EXPECT_EQ(data["state"], "finished");
  EXPECT_EQ(data["summary"]["samples"], 400);
  EXPECT_NEAR(data["summary"]["tokens_per_second"], 8006, 3);
  EXPECT_EQ(data["summary"]["seconds"], 25);
  EXPECT_EQ(data["summary"]["reserved_peak_bytes"], 19'900'000'000);
}

/// A run that an earlier version began and this one resumed.
TEST(RunReportTest, NamesOfEarlierVersionsAreRead) {
  const RunFolder run;
  for (int64_t step = 1; step <= 4; ++step) {
    StepMetrics metrics = RunFolder::example_step(step, 4);
    metrics.num_look_ahead_splits = step;
    auto line = nlohmann::json::parse(metrics.to_json_line());
    if (step <= 2) line.erase("forecast_splits");
    run.append("metrics.jsonl", line.dump() + "\n");
  }
  run.write("plan.json", R"({"card": "NVIDIA H100", "card_bytes": 85000000000})");
  run.append("predictions.jsonl",
             R"({"step":0,"id":"a","task":"","question":"q","expected":"x","given":"first","images":[]})"
             "\n"
             R"({"step":4,"id":"a","task":"","question":"q","expected":"x","answer":"second","images":[]})"
             "\n");
  const auto data = render_and_parse(run);
  EXPECT_EQ(data["summary"]["forecast_splits"], 10);
  EXPECT_EQ(data["curves"]["forecast_splits"]["mean"], nlohmann::json({1, 2, 3, 4}));
  EXPECT_EQ(data["plan"]["gpu"], "NVIDIA H100");
  EXPECT_EQ(data["plan"]["gpu_bytes"], 85'000'000'000);
  const auto& answers = data["predictions"]["samples"][0]["answers"];
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0]["answer"], "first");
  EXPECT_EQ(answers[1]["answer"], "second");
}

TEST(RunReportTest, ASlowFirstStepIsExcluded) {
  const RunFolder run;
  StepMetrics slow_step = RunFolder::example_step(1, 50);
  slow_step.step_seconds = 90;  // kernels are loaded or compiled
  run.append("metrics.jsonl", slow_step.to_json_line() + "\n");
  EXPECT_EQ(render_and_parse(run)["summary"]["step_seconds"], 90) << "the only step";
  run.append_steps(2, 3, 50);
  EXPECT_EQ(render_and_parse(run)["summary"]["step_seconds"], 0.5);
  EXPECT_EQ(render_and_parse(run)["summary"]["seconds"], 91) << "the slow step counts as time";
}

TEST(RunReportTest, TasksWithTheMostLabelTokensFirst) {
  const RunFolder run;
  run.append_steps(1, 30, 60);
  const auto data = render_and_parse(run);
  ASSERT_EQ(data["tasks"].size(), 2u);
  EXPECT_EQ(data["tasks"][0]["name"], "read");
  EXPECT_EQ(data["tasks"][0]["label_tokens"], 6000);
  EXPECT_EQ(data["tasks"][0]["weight"], 2);
  EXPECT_TRUE(data["tasks"][0]["accuracy"].is_null()) << "the run does not measure it";
  EXPECT_NEAR(data["tasks"][1]["accuracy"], 0.34, 0.01) << "of the last steps";
  EXPECT_NEAR(data["curves"]["task_loss"][0]["mean"][9], 2 * RunFolder::example_step(10, 60).loss, 1e-4);
  EXPECT_NEAR(data["curves"]["task_loss"][1]["mean"][9], RunFolder::example_step(10, 60).loss / 2, 1e-4);
}

TEST(RunReportTest, ChangingTaskWeightsAreCurves) {
  const RunFolder run;
  run.append_steps(1, 5, 10);
  EXPECT_FALSE(render_and_parse(run)["curves"].contains("task_weight")) << "1 and 2 in all steps";
  StepMetrics changed_step = RunFolder::example_step(6, 10);
  changed_step.tasks["read"].weight = 1.5;
  changed_step.tasks["count"].weight = 1.5;
  run.append("metrics.jsonl", changed_step.to_json_line() + "\n");
  const auto weights = render_and_parse(run)["curves"]["task_weight"];
  EXPECT_EQ(weights[0]["mean"].dump(), "[2,2,2,2,2,1.5]") << "read";
  EXPECT_EQ(weights[1]["mean"].dump(), "[1,1,1,1,1,1.5]");
}

TEST(RunReportTest, EpochsAreRowsAndTheCurrentOneIsLast) {
  const RunFolder run;
  run.append_evaluated_steps(100, 10);  // two epochs
  StepMetrics next_step = RunFolder::example_step(101, 100);
  run.append("metrics.jsonl", next_step.to_json_line() + "\n");
  const auto epochs = render_and_parse(run)["epochs"];
  ASSERT_EQ(epochs["rows"].size(), 3u);
  EXPECT_EQ(epochs["rows"][0]["last_step"], 50);
  EXPECT_EQ(epochs["rows"][0]["evaluation"]["loss"], 0.7);
  EXPECT_EQ(epochs["rows"][1]["evaluation"]["loss"], 1.2);
  EXPECT_EQ(epochs["rows"][2]["complete"], false);
  EXPECT_EQ(epochs["hidden"], 0);
}

TEST(RunReportTest, TheNewestEpochsAreShown) {
  const RunFolder run;
  std::string lines;
  for (int64_t step = 1; step <= 1000; ++step) lines += fmt::format("{{\"step\":{0},\"epoch\":{0}}}\n", step);
  run.write("metrics.jsonl", lines);
  const auto epochs = render_and_parse(run)["epochs"];
  EXPECT_EQ(epochs["rows"].size() + epochs["hidden"].get<size_t>(), 1000u);
  EXPECT_EQ(epochs["rows"].size(), 100u);
  EXPECT_EQ(epochs["rows"].back()["epoch"], 1000);
}

TEST(RunReportTest, LongRunsAreDownsampledAndKeepTheirSpikes) {
  const RunFolder run;
  constexpr int64_t kSteps = 5000;
  constexpr int64_t kSpike = 3333;
  run.append_steps(1, kSpike - 1, kSteps);
  StepMetrics spike = RunFolder::example_step(kSpike, kSteps);
  spike.loss = 77;
  spike.num_oom_splits = 3;
  run.append("metrics.jsonl", spike.to_json_line() + "\n");
  run.append_steps(kSpike + 1, kSteps, kSteps);
  const auto data = render_and_parse(run);
  const auto& loss = data["curves"]["loss"];
  const int64_t width = data["curves"]["width"];
  EXPECT_EQ(width, 8);
  ASSERT_EQ(loss["mean"].size(), 625u);
  const size_t bin = (kSpike - 1) / 8;
  EXPECT_EQ(loss["max"][bin], 77);
  double sum = 0;
  for (int64_t step = static_cast<int64_t>(bin) * 8 + 1; step <= static_cast<int64_t>(bin + 1) * 8; ++step) {
    sum += step == kSpike ? 77 : RunFolder::example_step(step, kSteps).loss;
  }
  EXPECT_NEAR(loss["mean"][bin], sum / 8, 1e-3);
  EXPECT_EQ(data["curves"]["oom_splits"]["mean"][bin], 3) << "counts are summed";
  EXPECT_EQ(data["curves"]["oom_splits"]["mean"][bin + 1], 0);
  EXPECT_EQ(data["summary"]["oom_splits"], 3);
}

TEST(RunReportTest, LongRunsStaySmall) {
  const RunFolder run;
  std::vector<std::string> line_endings;  // of lines, after the step
  for (int64_t step = 1; step <= 40; ++step) {
    const std::string line = RunFolder::example_step(step, 40).to_json_line();
    line_endings.push_back(line.substr(line.find(",\"epoch\"")));
  }
  std::string lines;
  for (size_t step = 1; step <= 100'000; ++step) {
    lines +=
        fmt::format("{{\"step\":{},\"total_steps\":100000{}\n", step, line_endings[step * 7 % line_endings.size()]);
  }
  run.write("metrics.jsonl", lines);
  const std::string page = render_run_report(run.path());
  EXPECT_LT(page.size(), 2'000'000u);
  EXPECT_EQ(parse_page_data(page)["summary"]["steps"], 100'000);
}

TEST(RunReportTest, ReadsOnlyAppendedLines) {
  const RunFolder run;
  run.append_steps(1, 5000, 6000);
  RunReport report(run.path());
  report.write();
  run.append_steps(5001, 5020, 6000);
  const std::string line = RunFolder::example_step(5021, 6000).to_json_line() + "\n";
  run.append("metrics.jsonl", line.substr(0, 100));
  const std::clock_t start = std::clock();  // CPU time of this process, independent of other work on the machine
  report.write();
  const double milliseconds = 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  RecordProperty("write_milliseconds", std::to_string(milliseconds));
  EXPECT_LT(milliseconds, 500) << "it is written while the run waits";
  EXPECT_EQ(parse_page_data(report.render_html())["summary"]["steps"], 5020)
      << "a line without its end is not read yet";
  run.append("metrics.jsonl", line.substr(100));
  EXPECT_EQ(parse_page_data(report.render_html())["summary"]["steps"], 5021);
  EXPECT_EQ(parse_page_data(report.render_html())["curves"], render_and_parse(run)["curves"]) << "as if read at once";
}

TEST(RunReportTest, AReplacedFileIsReadAgain) {
  const RunFolder run;
  run.append_steps(1, 40, 100);
  RunReport report(run.path());
  EXPECT_EQ(parse_page_data(report.render_html())["summary"]["step"], 40);
  { const StepLog lines(run.path() / "metrics.jsonl", 30); }  // as a run that resumes after step 30
  EXPECT_EQ(parse_page_data(report.render_html())["summary"]["step"], 30);
}

TEST(RunReportTest, ReportsHowARunEnded) {
  const RunFolder run;
  run.append_steps(1, 10, 100);
  run.append_event({.step = 10, .kind = EventKind::kStopped, .message = "signal 15"});
  auto data = render_and_parse(run);
  EXPECT_EQ(data["state"], "stopped");
  EXPECT_EQ(data["message"], "signal 15");
  run.append_event({.step = 10, .kind = EventKind::kResumed, .message = "from checkpoints/step-10"});
  EXPECT_EQ(render_and_parse(run)["state"], "running");
  run.append_steps(11, 20, 100);
  run.append_event({.step = 20, .kind = EventKind::kFailed, .message = "loss nan"});
  data = render_and_parse(run);
  EXPECT_EQ(data["state"], "failed");
  EXPECT_EQ(data["message"], "loss nan");
  run.append_steps(21, 100, 100);
  EXPECT_EQ(render_and_parse(run)["state"], "finished") << "it continued after the reported end";
}

TEST(RunReportTest, KeepsTheNewestEventsOfEachKind) {
  const RunFolder run;
  run.append_steps(1, 3, 3);
  run.append_event(
      {.step = 1, .kind = EventKind::kOomSplit, .message = "rare", .ids = std::vector<std::string>(20, "id")});
  for (int i = 0; i < 500; ++i)
    run.append_event({.step = 2, .kind = EventKind::kCheckpoint, .message = std::to_string(i)});
  run.append("events.jsonl", "{\"step\":3,\"kind\":\"of the future\"}\n{\"step\":3}\nnull\n");
  const auto events = render_and_parse(run)["events"];
  EXPECT_EQ(events["counts"]["checkpoint"], 500);
  EXPECT_EQ(events["counts"]["of the future"], 1);
  ASSERT_EQ(events["shown"].size(), 42u);
  EXPECT_EQ(events["shown"][1]["message"], "499");
  EXPECT_EQ(events["shown"].back()["kind"], "oom_split") << "many of another kind do not hide it";
  EXPECT_EQ(events["shown"].back()["ids"].size() + events["shown"].back()["more_ids"].get<size_t>(), 20u);
}

TEST(RunReportTest, IgnoresUnknownContent) {
  const RunFolder run;
  run.write(
      "metrics.jsonl",
      "{\"step\":1,\"loss\":null,\"tasks\":[],\"micro_batch_sizes\":{}}\n"
      "{\"step\":2,\"loss\":\"x\",\"tasks\":{\"a\":1},\"skipped\":3}\n"
      "{\"step\":3,\"evaluation\":7}\n{\"step\":4,\"evaluation\":{\"loss\":[],\"tasks\":{\"a\":1},\"is_best\":2}}\n"
      "not json\n[1]\n{\"step\":\"x\"}\n{\"step\":2}\n{\"step\":-5}\n{\"step\":99999999999999999}\n"
      "{\"step\":1000000000,\"loss\":1.5}\n{\"step\":1000000001,\"lo");
  for (const char* file : {"plan.json", "ledger.json", "environment.json"}) run.write(file, "{\"cut\":");
  run.write("predictions.jsonl", "{\"id\":3,\"images\":7}\n");
  run.write("config.yaml", "\xff\xfe");
  const auto data = render_and_parse(run);
  EXPECT_EQ(data["summary"]["steps"], 5);
  EXPECT_TRUE(data["evaluations"]["newest"]["loss"].is_null());
  EXPECT_EQ(data["summary"]["step"], 1'000'000'000);
  EXPECT_EQ(data["summary"]["loss"], 1.5);
  EXPECT_TRUE(data["ledger"].is_null());
}

TEST(RunReportTest, NanLossesAreGaps) {
  const RunFolder run;
  for (int64_t step = 1; step <= 3; ++step) {
    StepMetrics metrics = RunFolder::example_step(step, 3);
    if (step == 2) metrics.loss = metrics.grad_norm = std::numeric_limits<double>::quiet_NaN();
    run.append("metrics.jsonl", metrics.to_json_line() + "\n");
  }
  const auto curves = render_and_parse(run)["curves"];
  EXPECT_TRUE(curves["loss"]["mean"][1].is_null());
  EXPECT_FALSE(curves["loss"]["mean"][2].is_null());
}

TEST(RunReportTest, ExternalTextIsEscaped) {
  const RunFolder run;
  run.append_steps(1, 2, 2);
  StepMetrics metrics = RunFolder::example_step(3, 3);
  metrics.tasks["</script><img src=x onerror=alert(1)>{{data}}"] = {.loss = 1, .label_tokens = 1};
  run.append("metrics.jsonl", metrics.to_json_line() + "\n");
  run.append_event({.step = 1, .kind = EventKind::kAnomaly, .message = "<script>alert(1)</script>", .ids = {"<b>"}});
  const std::string page = render_run_report(run.path());
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_EQ(parse_page_data(page)["tasks"].back()["name"], "</script><img src=x onerror=alert(1)>{{data}}");
}

TEST(RunReportTest, PageLoadsNothing) {
  const RunFolder run;
  run.append_steps(1, 2, 2);
  const std::string page = render_run_report(run.path());
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* const reference : {"https:", " src=", "href=", "url(http", "@import", "fetch(", "XMLHttpRequest"}) {
    EXPECT_THAT(page, Not(HasSubstr(reference)));
  }
}

}  // namespace
}  // namespace vlmtrain::report
