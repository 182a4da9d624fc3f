#include <algorithm>
#include <optional>

#include "e2e/command.h"

namespace vlmtrain::e2e {
namespace {

using testing::HasSubstr;

/// Runs on a virtual card with a twin: both are exact there, so what was foreseen is what happens.
class TwinTest : public CommandTest {
 protected:
  static std::vector<std::string> arguments(const std::vector<std::string>& overrides) {
    std::vector<std::string> all{"--config", "train.yaml", "--device", "virtual:rtx4090", "memory.mode=aggressive"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return all;
  }
  Result train_on_card(const std::vector<std::string>& overrides) const { return run(arguments(overrides)); }

  std::vector<nlohmann::ordered_json> steps() const { return step_lines(std::string(kVirtualRun) + "metrics.jsonl"); }
  nlohmann::ordered_json plan() const { return json_file(std::string(kVirtualRun) + "plan.json"); }

  int64_t sum_of(const char* key) const {
    int64_t sum = 0;
    for (const auto& step : steps()) sum += step[key].get<int64_t>();
    return sum;
  }

  /// Of a batch whose memory is large beside the 20 MiB that the allocator may ask for at once.
  static std::vector<std::string> large_batch(const std::string& micro_batch_size) {
    return {"training.global_batch_size=44", "training.micro_batch_size=" + micro_batch_size, "memory.recompute=none"};
  }

  /// memory.limit_gb of a card that lies between what micro-batches of 1 and of 44 need.
  std::string limit_between() const {
    std::vector<double> needed;
    int64_t context = 0;
    for (const char* size : {"1", "44"}) {
      auto settings = large_batch(size);
      settings.emplace_back("training.max_steps=1");
      const Result result = train_on_card(settings);
      EXPECT_EQ(result.exit_code, 0) << result.err;
      needed.push_back(plan()["memory"]["reserved_peak_bytes"].get<double>());
      context = plan()["memory"]["context_bytes"];
      std::filesystem::remove_all(folder() / "run");
    }
    constexpr double kShareOfAggressive = 0.98;
    const double limit = needed[0] + 0.6 * (needed[1] - needed[0]);
    return std::to_string((limit + static_cast<double>(context)) / kShareOfAggressive / 1e9);
  }
};

TEST_F(TwinTest, ForeseesEveryStepToTheByte) {
  const Result result =
      train_on_card({"training.global_batch_size=8", "training.micro_batch_size=2", "training.max_steps=12"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(steps().size(), 12U);
  for (const auto& step : steps()) {
    EXPECT_EQ(step["predicted_peak_bytes"], step["reserved_peak_bytes"]) << step["step"];
    EXPECT_EQ(step["predicted_allocated_peak_bytes"], step["allocated_peak_bytes"]) << step["step"];
  }
  const auto twin = plan()["measured"]["twin"];
  EXPECT_EQ(twin["foreseen_steps"], 12);
  EXPECT_EQ(twin["worst_error"], 0.0);
}

TEST_F(TwinTest, CutsWhatWouldNotFitBeforeItFails) {
  const std::string limit = "memory.limit_gb=" + limit_between();
  auto large = large_batch("44");
  large.insert(large.end(), {limit, "training.max_steps=12"});
  EXPECT_EQ(train_on_card(large).exit_code, 3) << "without leave to cut, the run does not begin";
  std::filesystem::remove_all(folder() / "run");

  auto with_leave = large;
  with_leave.emplace_back("memory.allow_splits=true");
  const Result result = train_on_card(with_leave);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(sum_of("foreseen_splits"), 0);
  EXPECT_EQ(sum_of("oom_splits"), 0);
  for (const auto& step : steps()) {
    EXPECT_EQ(step["samples"], 44);
    EXPECT_EQ(step["predicted_peak_bytes"], step["reserved_peak_bytes"]) << step["step"];
  }
  EXPECT_EQ(plan()["measured"]["allocation_retries"], 0);
  EXPECT_THAT(read_text(folder() / kVirtualRun / "events.jsonl"), HasSubstr("\"foreseen_split\""));
}

TEST_F(TwinTest, WithoutOneTheGuardDoesStepsAgain) {
  auto settings = large_batch("44");
  settings.insert(settings.end(), {"memory.limit_gb=" + limit_between(), "training.max_steps=12",
                                   "memory.allow_splits=true", "memory.twin=false"});
  const Result result = train_on_card(settings);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(steps().size(), 12U);
  EXPECT_GT(sum_of("oom_splits"), 0);
  for (const auto& step : steps()) EXPECT_EQ(step["samples"], 44);
  EXPECT_THAT(read_text(folder() / kVirtualRun / "events.jsonl"), HasSubstr("\"oom_split\""));
}

/// The run's child that is its twin, once the planner's is gone.
std::optional<pid_t> twin_of(const std::filesystem::path& run_folder) {
  if (!std::filesystem::exists(run_folder / "metrics.jsonl")) return std::nullopt;
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    const std::string name = process.path().filename().string();
    if (!std::ranges::all_of(name, [](char c) { return std::isdigit(c) != 0; })) continue;
    std::error_code gone;
    const auto folder = std::filesystem::read_symlink(process.path() / "cwd", gone);
    if (gone || folder != run_folder.parent_path().parent_path()) continue;
    if (read_text(process.path() / "cmdline").find("rehearse") != std::string::npos) return std::stoi(name);
  }
  return std::nullopt;
}

TEST_F(TwinTest, TheRunGoesOnWithoutATwinThatDied) {
  Process process(folder(),
                  arguments({"training.max_steps=200", "training.global_batch_size=8", "training.micro_batch_size=2"}));
  std::optional<pid_t> twin;
  wait_until(process, [&] {
    twin = twin_of(folder() / "run/virtual-rtx4090");
    return twin.has_value();
  });
  ASSERT_TRUE(twin);
  kill(*twin, SIGKILL);
  const Result result = process.wait();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(steps().size(), 200U);
  EXPECT_THAT(result.err, HasSubstr("training goes on without it"));
}

}  // namespace
}  // namespace vlmtrain::e2e
