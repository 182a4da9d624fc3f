#include "vlmtrain/train/past_runs.h"

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "base/captured_log.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::train {

namespace {

using testing::HasSubstr;

class PastRunsTest : public testing::Test {
 protected:
  static RunEnvironment make_environment(const std::string& device = "NVIDIA Test") {
    return {device, "580.1", "2.11.0", "here"};
  }

  const parity::TemporaryFolder folder_;
  const std::filesystem::path file_ = folder_.path() / "state/vlmtrain/past_runs.json";
};

TEST_F(PastRunsTest, RunsAreFoundByEnvironment) {
  EXPECT_FALSE(load_past_runs(file_, make_environment()));
  save_measured_run(file_, make_environment(),
                    {.num_runs = 1,
                     .context_bytes = 520'000'000,
                     .measured_to_predicted_step_time = 1.5,
                     .peak_to_planned_memory_ratio = 1.01});
  const auto past_runs = load_past_runs(file_, make_environment());
  ASSERT_TRUE(past_runs);
  EXPECT_EQ(past_runs->num_runs, 1);
  EXPECT_EQ(past_runs->context_bytes, 520'000'000);
  EXPECT_DOUBLE_EQ(*past_runs->measured_to_predicted_step_time, 1.5);
  EXPECT_DOUBLE_EQ(*past_runs->peak_to_planned_memory_ratio, 1.01);
  EXPECT_THAT(past_runs->last_run_date, testing::MatchesRegex("....-..-.."));
  for (RunEnvironment other_environment :
       {make_environment("NVIDIA Other"), RunEnvironment{"NVIDIA Test", "581", "2.11.0", "here"},
        RunEnvironment{"NVIDIA Test", "580.1", "2.12.0", "here"},
        RunEnvironment{"NVIDIA Test", "580.1", "2.11.0", "there"}}) {
    EXPECT_FALSE(load_past_runs(file_, other_environment));
  }
}

TEST_F(PastRunsTest, RunsAreCombined) {
  save_measured_run(file_, make_environment(),
                    {.num_runs = 1, .context_bytes = 500, .measured_to_predicted_step_time = 4.0});
  save_measured_run(file_, make_environment(),
                    {.num_runs = 1,
                     .context_bytes = 400,
                     .measured_to_predicted_step_time = 1.0,
                     .peak_to_planned_memory_ratio = 0.9});
  save_measured_run(file_, make_environment(), {.num_runs = 1});
  const auto past_runs = load_past_runs(file_, make_environment());
  ASSERT_TRUE(past_runs);
  EXPECT_EQ(past_runs->num_runs, 3);
  EXPECT_EQ(past_runs->context_bytes, 500);
  EXPECT_DOUBLE_EQ(*past_runs->measured_to_predicted_step_time, 2.0);
  EXPECT_DOUBLE_EQ(*past_runs->peak_to_planned_memory_ratio, 0.9);
}

TEST_F(PastRunsTest, KeepsTheLatestEnvironmentsOnly) {
  for (int i = 0; i < 70; ++i) save_measured_run(file_, make_environment(std::to_string(i)), {.num_runs = 1});
  EXPECT_EQ(io::read_json(file_)["places"].size(), 64U);
  EXPECT_FALSE(load_past_runs(file_, make_environment("5")));
  EXPECT_TRUE(load_past_runs(file_, make_environment("6")));
}

TEST_F(PastRunsTest, CountsConcurrentRuns) {
  constexpr int kThreads = 4;
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] { save_measured_run(file_, make_environment(), {.num_runs = 1}); });
  }
  threads.clear();
  EXPECT_EQ(load_past_runs(file_, make_environment())->num_runs, kThreads);
}

TEST_F(PastRunsTest, IgnoresAndReplacesADamagedFile) {
  std::filesystem::create_directories(file_.parent_path());
  const std::string entry = R"({"device": "NVIDIA Test", "driver": "580.1", "libtorch": "2.11.0", "host": "here", )"
                            R"("runs": 1, "last": "2026-01-01", )";
  for (const std::string& text :
       {std::string("{"), std::string("[]"), std::string(R"({"version": 2, "places": []})"),
        std::string(R"({"version": 1, "places": {}})"), std::string(200'000, '['),
        R"({"version": 1, "places": [)" + entry + R"("step_time_ratio": -1}]})",
        R"({"version": 1, "places": [)" + entry + R"("step_time_ratio": 1e300}]})",
        R"({"version": 1, "places": [)" + entry + R"("context_bytes": 9223372036854775807}]})",
        R"({"version": 1, "places": [)" + entry + R"("peak_ratio": "1"}]})", std::string(2 << 20, ' ')}) {
    SCOPED_TRACE(text.substr(0, 200));
    io::write_file(file_, text);
    const CapturedLog log;
    EXPECT_FALSE(load_past_runs(file_, make_environment()));
    EXPECT_THAT(log.text(), HasSubstr("are not used"));
    save_measured_run(file_, make_environment(), {.num_runs = 1});
    EXPECT_TRUE(load_past_runs(file_, make_environment()));
  }
}

TEST_F(PastRunsTest, DoesNotWaitForAFifo) {
  std::filesystem::create_directories(file_.parent_path());
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  EXPECT_FALSE(load_past_runs(file_, make_environment()));
}

TEST_F(PastRunsTest, IgnoresAnUnwritableFolder) {
  io::write_file(folder_.path() / "state", "a file");
  const CapturedLog log;
  save_measured_run(file_, make_environment(), {.num_runs = 1});
  EXPECT_THAT(log.text(), HasSubstr("not saved for later plans"));
}

TEST_F(PastRunsTest, OffDisablesTheFile) {
  EXPECT_TRUE(find_past_runs_file().empty()) << "tests are to leave the user's own file alone";
  save_measured_run({}, make_environment(), {.num_runs = 1});
  EXPECT_FALSE(load_past_runs({}, make_environment()));
  setenv("VLMTRAIN_PAST_RUNS", "/somewhere/else.json", 1);
  EXPECT_EQ(find_past_runs_file(), "/somewhere/else.json");
  setenv("VLMTRAIN_PAST_RUNS", "", 1);
  setenv("XDG_STATE_HOME", "/xdg", 1);
  EXPECT_EQ(find_past_runs_file(), "/xdg/vlmtrain/past_runs.json");
  setenv("XDG_STATE_HOME", "not/absolute", 1);
  EXPECT_EQ(find_past_runs_file(), std::filesystem::path(getenv("HOME")) / ".local/state/vlmtrain/past_runs.json");
  unsetenv("XDG_STATE_HOME");
  setenv("VLMTRAIN_PAST_RUNS", "off", 1);
}

TEST_F(PastRunsTest, CalibratesPlans) {
  planner::TargetGpu target = planner::find_target_gpu("rtx4090");
  EXPECT_FALSE(target.is_context_measured);
  EXPECT_EQ(target.device_name, "NVIDIA GeForce RTX 4090");
  calibrate_with_past_runs(target, {.num_runs = 1});
  EXPECT_FALSE(target.is_context_measured) << "nothing was measured";
  const PastRunMeasurements past_runs{.num_runs = 2,
                                      .last_run_date = "2026-11-23",
                                      .context_bytes = 420'000'000,
                                      .measured_to_predicted_step_time = 2.0};
  calibrate_with_past_runs(target, past_runs);
  EXPECT_TRUE(target.is_context_measured);
  EXPECT_EQ(target.context_bytes, 420'000'000);
  EXPECT_EQ(planner::make_target_gpu(24).device_name, "");

  planner::Plan plan;
  plan.best_estimate.step_seconds = 3;
  plan.best_estimate.tokens_per_second = 100;
  plan.alternatives = {plan.best_estimate};
  plan.average_step_estimate.emplace();
  plan.average_step_estimate->step_seconds = 1;
  plan.average_step_estimate->samples_per_second = 8;
  calibrate_with_past_runs(plan, past_runs);
  EXPECT_DOUBLE_EQ(plan.best_estimate.step_seconds, 6);
  EXPECT_DOUBLE_EQ(plan.best_estimate.tokens_per_second, 50);
  EXPECT_DOUBLE_EQ(plan.alternatives.front().step_seconds, 6);
  EXPECT_DOUBLE_EQ(plan.average_step_estimate->step_seconds, 2);
  EXPECT_DOUBLE_EQ(plan.average_step_estimate->samples_per_second, 4);
  EXPECT_THAT(past_runs.describe(),
              testing::AllOf(HasSubstr("2 runs on this machine"), HasSubstr("0.42 GB"), HasSubstr("2 times")));
}

}  // namespace

}  // namespace vlmtrain::train
