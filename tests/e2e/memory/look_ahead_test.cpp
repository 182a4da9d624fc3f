#include <algorithm>
#include <optional>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Runs on a virtual GPU with look-ahead. Both are exact there, so predictions equal measurements.
class LookAheadTest : public CommandTest {
 protected:
  static std::vector<std::string> arguments(const std::vector<std::string>& overrides) {
    std::vector<std::string> all{"--config", "train.yaml", "--device", "virtual:rtx4090", "memory.mode=aggressive"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return all;
  }
  Result train_on_test_gpu(const std::vector<std::string>& overrides) const { return run(arguments(overrides)); }

  std::vector<nlohmann::ordered_json> steps() const { return step_lines(std::string(kVirtualRun) + "metrics.jsonl"); }
  nlohmann::ordered_json plan() const { return json_file(std::string(kVirtualRun) + "plan.json"); }

  int64_t sum_metric(const char* key) const {
    int64_t sum = 0;
    for (const auto& step : steps()) sum += step[key].get<int64_t>();
    return sum;
  }

  /// A batch whose memory is large compared with the 20 MiB that the allocator may request at once.
  static std::vector<std::string> large_batch(const std::string& micro_batch_size) {
    return {"training.global_batch_size=44", "training.micro_batch_size=" + micro_batch_size, "memory.recompute=none"};
  }

  /// Returns the memory of the plan that a run with these settings makes.
  nlohmann::ordered_json plan_memory(const std::vector<std::string>& settings) const {
    std::vector<std::string> all{"plan",  "--config", "train.yaml", "--gpu", "rtx4090", "memory.mode=aggressive",
                                 "--json"};
    all.insert(all.end(), settings.begin(), settings.end());
    const Result result = run(all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::ordered_json::parse(result.out)["memory"];
  }

  /// Returns a memory.limit_gb between the needs of micro-batches of 1 and of 44 samples.
  std::string compute_middle_limit() const {
    std::vector<double> needed;
    int64_t context = 0;
    for (const char* size : {"1", "44"}) {
      const auto memory = plan_memory(large_batch(size));
      needed.push_back(memory["reserved_peak_bytes"].get<double>());
      context = memory["context_bytes"];
    }
    constexpr double kShareOfAggressive = 0.98;
    const double limit = needed[0] + 0.6 * (needed[1] - needed[0]);
    return std::to_string((limit + static_cast<double>(context)) / kShareOfAggressive / 1e9);
  }
};

/// Expects exact predictions from step `first` on, except in steps in which run and look-ahead must
/// differ.
void expect_exact_forecasts(const std::vector<nlohmann::ordered_json>& steps, size_t first) {
  for (size_t i = first - 1; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i]["predicted_peak_bytes"], steps[i]["reserved_peak_bytes"]) << steps[i]["step"];
    EXPECT_EQ(steps[i]["predicted_allocated_peak_bytes"], steps[i]["allocated_peak_bytes"]) << steps[i]["step"];
  }
}

TEST_F(LookAheadTest, ForecastsEveryStepExactly) {
  const Result result =
      train_on_test_gpu({"training.global_batch_size=8", "training.micro_batch_size=2", "training.max_steps=12"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(steps().size(), 12U);
  expect_exact_forecasts(steps(), 1);
  const auto look_ahead = plan()["measured"]["look_ahead"];
  EXPECT_EQ(look_ahead["forecast_steps"], 12);
  EXPECT_EQ(look_ahead["worst_error"], 0.0);
}

/// The number of chunks, and with it the launches and tensors of a step, follows from the lengths of
/// its samples.
TEST_F(LookAheadTest, ForecastsStepsOfGatedDeltaNetsExactly) {
  ASSERT_EQ(run({"init", "--preset", "qwen3.5-tiny", "--out", "delta-nets"}).exit_code, 0);
  const Result result =
      train_on_test_gpu({"model.path=delta-nets", "training.global_batch_size=8", "training.micro_batch_size=2",
                         "memory.recompute=all", "training.max_steps=6"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(steps().size(), 6U);
  expect_exact_forecasts(steps(), 1);
  EXPECT_EQ(plan()["measured"]["look_ahead"]["forecast_steps"], 6);
}

/// The host memory for inputs of blocks is that of the plan, in the run and in the look-ahead.
TEST_F(LookAheadTest, ForecastsStepsWithHostMemoryExactly) {
  const Result result =
      train_on_test_gpu({"training.global_batch_size=8", "training.micro_batch_size=2", "training.max_steps=6",
                         "memory.recompute=all", "memory.offload=gradients", "memory.offload_activations=true"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(steps().size(), 6U);
  expect_exact_forecasts(steps(), 1);
  EXPECT_EQ(plan()["measured"]["look_ahead"]["forecast_steps"], 6);
  EXPECT_EQ(plan()["offload_activations"], true);
  EXPECT_GT(plan()["memory"]["host_activation_bytes"], 0);
}

/// Returns 12.5 for the label " all-reduces per step" in "… 12.5 all-reduces per step".
double parse_preceding_number(const std::string& text, const std::string& label) {
  const size_t end = text.find(label);
  if (end == std::string::npos) return 0;
  return std::stod(text.substr(text.rfind(' ', end - 1) + 1, end));
}

class RankLookAheadTest : public LookAheadTest, public testing::WithParamInterface<const char*> {};

/// Two ranks with different samples, each with a virtual GPU and a look-ahead; rank 1 logs the same
/// as rank 0.
TEST_P(RankLookAheadTest, ForecastsItsSteps) {
  const std::string sharding = GetParam();
  const Result result =
      train_on_test_gpu({"training.global_batch_size=8", "training.micro_batch_size=2", "training.max_steps=8",
                         "output.report=false", "distributed.sharding=" + sharding, "--nproc-per-node", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(steps().size(), 8U);
  for (const auto& step : steps()) {
    EXPECT_EQ(step["samples"], 8) << "of both";
    EXPECT_EQ(step["micro_batches"], 2);
    EXPECT_EQ(step["predicted_peak_bytes"], step["reserved_peak_bytes"]) << step["step"];
    EXPECT_EQ(step["predicted_allocated_peak_bytes"], step["allocated_peak_bytes"]) << step["step"];
  }
  EXPECT_EQ(plan()["world_size"], 2);
  EXPECT_EQ(plan()["measured"]["look_ahead"]["forecast_steps"], 8);
  const std::string second = read_text(folder() / kVirtualRun / "rank-1.log");
  EXPECT_THAT(second, AllOf(HasSubstr("look-ahead: 8 of 8 steps predicted"), HasSubstr("within 0.00 %")));
  // The reductions are those of the plan.
  EXPECT_EQ(plan()["sharding"], sharding);
  const int calls = plan()["communication"]["calls_per_step"];
  if (sharding == "none") {
    EXPECT_THAT(second, HasSubstr("in " + std::to_string(calls) + ".0 all-reduces per step"));
  } else if (sharding == "full") {
    const auto read_number = [&](const char* label) { return parse_preceding_number(second, label); };
    EXPECT_NEAR(read_number(" all-reduces per step") + read_number(" reduce-scatters per step") +
                    read_number(" all-gathers per step"),
                calls, 0.1);
    EXPECT_GT(read_number(" all-gathers per step"), 4) << "of two micro-batches, each block twice";
  } else {
    EXPECT_EQ(calls, 4);  // the sums, of the loss, and of the norm's square
    EXPECT_THAT(second, AllOf(HasSubstr("in 2.0 all-reduces per step"), HasSubstr("in 1.0 reduce-scatters per step"),
                              HasSubstr("in 1.0 all-gathers per step")));
  }
}

INSTANTIATE_TEST_SUITE_P(Sharing, RankLookAheadTest, testing::Values("none", "optimizer", "full"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_F(LookAheadTest, SplitsStepsThatWouldNotFit) {
  const std::string limit = "memory.limit_gb=" + compute_middle_limit();
  auto large = large_batch("44");
  large.insert(large.end(), {limit, "training.max_steps=6"});
  EXPECT_EQ(train_on_test_gpu(large).exit_code, 3) << "without allow_splits the run does not start";
  std::filesystem::remove_all(folder() / "run");

  auto with_leave = large;
  with_leave.emplace_back("memory.allow_splits=true");
  const Result result = train_on_test_gpu(with_leave);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(steps().size(), 6U);
  EXPECT_GT(sum_metric("forecast_splits"), 0);
  EXPECT_EQ(sum_metric("oom_splits"), 0);
  for (const auto& step : steps()) {
    EXPECT_EQ(step["samples"], 44);
    EXPECT_EQ(step["predicted_peak_bytes"], step["reserved_peak_bytes"]) << step["step"];
    EXPECT_LE(step["reserved_peak_bytes"], plan()["limit_bytes"]) << step["step"];
  }
  EXPECT_EQ(plan()["measured"]["allocation_retries"], 0);
  EXPECT_THAT(read_text(folder() / kVirtualRun / "events.jsonl"), HasSubstr("\"foreseen_split\""));
}

TEST_F(LookAheadTest, WithoutLookAheadTheGuardRetries) {
  auto settings = large_batch("44");
  settings.insert(settings.end(), {"memory.limit_gb=" + compute_middle_limit(), "training.max_steps=6",
                                   "memory.allow_splits=true", "memory.look_ahead=false"});
  const Result result = train_on_test_gpu(settings);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(steps().size(), 6U);
  EXPECT_GT(sum_metric("oom_splits"), 0);
  for (const auto& step : steps()) {
    EXPECT_EQ(step["samples"], 44);
    EXPECT_LE(step["reserved_peak_bytes"], plan()["limit_bytes"]) << "the margin is for unpredictable memory";
  }
  EXPECT_THAT(read_text(folder() / kVirtualRun / "events.jsonl"), HasSubstr("\"oom_split\""));
}

/// Environment variable of the runs that a test starts.
class EnvironmentSetting {
 public:
  EnvironmentSetting(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~EnvironmentSetting() { unsetenv(name_); }
  EnvironmentSetting(const EnvironmentSetting&) = delete;
  EnvironmentSetting& operator=(const EnvironmentSetting&) = delete;

 private:
  const char* name_;
};

/// A launch that only forward passes make.
constexpr const char* kForwardLaunch = "launch@gather_kernel";

/// Callbacks of a checkpoint use the GPU, and the run empties its cache afterwards: the look-ahead
/// must do the same. Two steps are submitted by then.
TEST_F(LookAheadTest, ResynchronizesAfterASave) {
  auto settings = large_batch("4");
  settings.insert(settings.end(), {"training.max_steps=16", "output.save_steps=4"});
  const Result result = train_on_test_gpu(settings);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto measured_steps = steps();
  ASSERT_EQ(measured_steps.size(), 16U);
  for (const size_t step : {1U, 2U, 3U, 4U, 7U, 8U, 11U, 12U, 15U, 16U}) {
    EXPECT_EQ(measured_steps[step - 1]["predicted_peak_bytes"], measured_steps[step - 1]["reserved_peak_bytes"])
        << step;
  }
  EXPECT_THAT(read_text(folder() / kVirtualRun / "events.jsonl"),
              HasSubstr("step 7: starts with an empty allocator cache"));
}

/// The run waits no more than a hundredth of a step for a look-ahead that is slower than its
/// virtual GPU with timed kernels.
TEST_F(LookAheadTest, DoesNotWaitForASlowLookAhead) {
  const EnvironmentSetting time("VLMTRAIN_VGPU_LAUNCH_MICROSECONDS", "1");
  const EnvironmentSetting delay("VLMTRAIN_LOOK_AHEAD_DELAY_SECONDS", "60");
  const Result result =
      train_on_test_gpu({"training.global_batch_size=8", "training.micro_batch_size=2", "training.max_steps=14"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(steps().size(), 14U);
  EXPECT_THAT(result.err, HasSubstr("the look-ahead is 10 steps late; training continues without it"));
  const auto look_ahead = plan()["measured"]["look_ahead"];
  EXPECT_EQ(look_ahead["late_steps"], 10);
  EXPECT_EQ(look_ahead["forecast_steps"], 0);
  EXPECT_LT(look_ahead["wait_seconds"], 10);
}

/// The host runs ahead of the GPU with timed kernels, as on a real one, and steps take the GPU's
/// time.
TEST_F(LookAheadTest, WorksWithATimedVirtualGpu) {
  const EnvironmentSetting time("VLMTRAIN_VGPU_LAUNCH_MICROSECONDS", "500");
  const Result result =
      train_on_test_gpu({"training.global_batch_size=4", "training.micro_batch_size=2", "training.max_steps=8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto measured_steps = steps();
  ASSERT_EQ(measured_steps.size(), 8U);
  // A mean, because a step seems shorter if the host was late at the end of the one before.
  double seconds = 0;
  for (size_t i = 2; i < 8; ++i) seconds += measured_steps[i]["step_seconds"].get<double>();
  EXPECT_GT(seconds / 6, 0.1) << "some hundreds of kernels";
  const auto look_ahead = plan()["measured"]["look_ahead"];
  EXPECT_EQ(look_ahead["forecast_steps"].get<int>() + look_ahead["late_steps"].get<int>(), 8);
}

/// The driver finds no room for a kernel's code in the middle of a step: the step is repeated
/// unchanged, and predictions are exact again from the third step after it.
TEST_F(LookAheadTest, RecoversFromDriverOutOfMemory) {
  const EnvironmentSetting fault("VLMTRAIN_VGPU_FAIL", std::string(kForwardLaunch) + ":40");
  auto settings = large_batch("4");
  settings.emplace_back("training.max_steps=14");
  const Result result = train_on_test_gpu(settings);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto measured_steps = steps();
  ASSERT_EQ(measured_steps.size(), 14U);
  const auto failed = std::ranges::find_if(measured_steps, [](const auto& step) { return step["oom_splits"] > 0; });
  ASSERT_NE(failed, measured_steps.end());
  EXPECT_EQ((*failed)["oom_splits"], 1);
  EXPECT_EQ((*failed)["micro_batches"], 11) << "repeated without a split";
  EXPECT_THAT(read_text(folder() / kVirtualRun / "events.jsonl"), HasSubstr("CUDA error: out of memory"));
  const auto first_alike = (*failed)["step"].get<size_t>() + 3;
  ASSERT_LT(first_alike, measured_steps.size());
  expect_exact_forecasts(measured_steps, first_alike);
}

/// Other processes take the whole GPU for a while, so that a sample fails even alone: it is
/// dropped, and the look-ahead, which simulated the step with it, is told.
TEST_F(LookAheadTest, ResynchronizesAfterADroppedSample) {
  const EnvironmentSetting fault("VLMTRAIN_VGPU_FAIL", std::string(kForwardLaunch) + ":6+5");
  auto settings = large_batch("44");  // no gradient exists yet when the forward pass fails
  // Emptying the cache for another reason would hide the effect.
  settings.insert(settings.end(), {"training.max_steps=14", "data.on_bad_sample=skip", "memory.empty_cache_above=1"});
  const Result result = train_on_test_gpu(settings);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto measured_steps = steps();
  ASSERT_EQ(measured_steps.size(), 14U);
  std::optional<size_t> done_before;
  for (const auto& line : step_lines(std::string(kVirtualRun) + "events.jsonl")) {
    if (line["message"].get<std::string>().find("it is dropped") != std::string::npos) done_before = line["step"];
  }
  ASSERT_TRUE(done_before);
  for (const auto& step : measured_steps) EXPECT_EQ(step["samples"], 44) << "another sample replaces it";
  const size_t first_alike = *done_before + 1 + 3;
  ASSERT_LT(first_alike, measured_steps.size());
  expect_exact_forecasts(measured_steps, first_alike);
}

/// After a failure the look-ahead's limit is below the need of any step: a warning is logged, and the
/// run continues. After enough successful steps the limit is restored.
TEST_F(LookAheadTest, TriesAStepThatIsForecastNotToFit) {
  std::vector<std::string> settings{"training.micro_batch_size=1", "memory.recompute=none", "training.max_steps=40"};
  const auto memory = plan_memory(settings);
  const auto needed = memory["reserved_peak_bytes"].get<double>();
  const auto context = memory["context_bytes"].get<double>();

  const EnvironmentSetting fault("VLMTRAIN_VGPU_FAIL", std::string(kForwardLaunch) + ":10");
  constexpr double kHeadroomFactor = 1.02;
  constexpr double kShareOfAggressive = 0.98;
  settings.push_back("memory.limit_gb=" +
                     std::to_string((kHeadroomFactor * needed + context) / kShareOfAggressive / 1e9));
  const Result result = train_on_test_gpu(settings);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(steps().size(), 40U);
  const std::string events = read_text(folder() / kVirtualRun / "events.jsonl");
  EXPECT_THAT(events, HasSubstr("is not expected to fit within the plan's limit"));
  EXPECT_THAT(events, HasSubstr("\"sample-"));
  const int64_t given_up = plan()["measured"]["look_ahead"]["unfit_steps"];
  EXPECT_GT(given_up, 0);
  EXPECT_LT(given_up, 30);
}

/// An illegal memory access, after which every call fails.
TEST_F(LookAheadTest, ReportsABrokenDevice) {
  const EnvironmentSetting fault("VLMTRAIN_VGPU_FAIL", "illegal_address@gather_kernel:40");
  const Result result = train_on_test_gpu({"training.max_steps=50"});
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, HasSubstr("vlmtrain: error: the device failed: CUDA error: an illegal memory access was "
                                    "encountered; run the same command again to resume from the last checkpoint"));
  EXPECT_THAT(result.err, Not(HasSubstr("out of memory (")));
  EXPECT_THAT(result.err, Not(HasSubstr("internal error")));
  const auto events = step_lines(std::string(kVirtualRun) + "events.jsonl");
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back()["kind"], "failed");
}

TEST_F(LookAheadTest, PermanentDeviceFailureEndsTheRun) {
  const EnvironmentSetting fault("VLMTRAIN_VGPU_FAIL", std::string(kForwardLaunch) + ":40+1000000000");
  const Result result = train_on_test_gpu({"training.max_steps=50", "data.on_bad_sample=skip"});
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, HasSubstr("device memory is exhausted regardless of the sample"));
}

/// Returns the look-ahead's process, once the planner's has ended.
std::optional<pid_t> find_look_ahead_process(const std::filesystem::path& run_folder) {
  if (!std::filesystem::exists(run_folder / "metrics.jsonl")) return std::nullopt;
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    const std::string name = process.path().filename().string();
    if (!std::ranges::all_of(name, [](char c) { return std::isdigit(c) != 0; })) continue;
    std::error_code error;
    const auto folder = std::filesystem::read_symlink(process.path() / "cwd", error);
    if (error || folder != run_folder.parent_path().parent_path()) continue;
    if (read_text(process.path() / "cmdline").find("dry-run") != std::string::npos) return std::stoi(name);
  }
  return std::nullopt;
}

TEST_F(LookAheadTest, ContinuesWithoutADeadLookAhead) {
  Process process(folder(),
                  arguments({"training.max_steps=80", "training.global_batch_size=8", "training.micro_batch_size=2"}));
  std::optional<pid_t> look_ahead;
  wait_until(process, [&] {
    look_ahead = find_look_ahead_process(folder() / "run/virtual-rtx4090");
    return look_ahead.has_value();
  });
  ASSERT_TRUE(look_ahead);
  kill(*look_ahead, SIGKILL);
  const Result result = process.wait();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(steps().size(), 80U);
  EXPECT_THAT(result.err, HasSubstr("training continues without it"));
}

}  // namespace

}  // namespace vlmtrain::e2e
