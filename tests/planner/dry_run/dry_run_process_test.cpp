#include <sys/wait.h>
#include <unistd.h>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "planner/dry_run.h"
#include "planner/user_error.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::planner {
namespace {

using testing::SizeIs;

/// The children of a process according to /proc.
std::vector<pid_t> list_children(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;
    // id (name) state parent
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    std::string state;
    pid_t parent_id = 0;
    fields >> state >> parent_id;
    if (parent_id == parent) children.push_back(static_cast<pid_t>(std::stol(line)));
  }
  return children;
}

TEST_F(DryRunTest, APrefetchedResultIsTheSameAndTheWorkerMayDie) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const DryRunRequest single_sample = request(make_step_config(1), 4), two_samples = request(make_step_config(2), 4);
  const DryRunResult first_result = process.dry_run(single_sample), second_result = process.dry_run(two_samples);
  process.prefetch(two_samples);
  EXPECT_EQ(list_peaks(process.dry_run(single_sample)), list_peaks(first_result));
  EXPECT_EQ(list_peaks(process.dry_run(two_samples)), list_peaks(second_result));
  std::vector<pid_t> workers;
  for (const pid_t child : list_children(getpid())) {
    for (const pid_t worker : list_children(child)) workers.push_back(worker);
  }
  if (workers.empty()) GTEST_SKIP() << "one processor has one worker";
  process.prefetch(two_samples);
  for (const pid_t worker : workers) kill(worker, SIGKILL);
  EXPECT_EQ(list_peaks(process.dry_run(two_samples)), list_peaks(second_result));
  process.prefetch(single_sample);
  EXPECT_EQ(list_peaks(process.dry_run(single_sample)), list_peaks(first_result));
}

TEST_F(DryRunTest, OutOfMemoryIsReportedAndTheProcessContinues) {
  const PresetFolder tiny("smolvlm-tiny");
  const DryRunRequest small{
      .step_config = make_step_config(1), .steps = {kSteps, {{tiny.shape({.images = 0}), 2}}}, .with_detail = true};
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = 4 * kGiB});
  const DryRunResult out_of_memory_result = process.dry_run(request(make_step_config(4), 4));
  EXPECT_TRUE(out_of_memory_result.ran_out_of_memory);
  EXPECT_LT(std::ssize(out_of_memory_result.steps), kSteps);
  EXPECT_FALSE(out_of_memory_result.detail);

  process.set_job(tiny.job());
  const DryRunResult next_result = process.dry_run(small);
  EXPECT_FALSE(next_result.ran_out_of_memory);
  DryRunProcess new_process(tiny.job(), {.gpu = "h100", .memory_bytes = 4 * kGiB});
  EXPECT_EQ(list_peaks(next_result), list_peaks(new_process.dry_run(small))) << "a failed dry run leaves nothing";

  process.set_job(model_.job());
  EXPECT_TRUE(process.dry_run(request(make_step_config(4), 4)).ran_out_of_memory);
}

TEST_F(DryRunTest, AnUnknownFamilyIsTheSameErrorAsInProcess) {
  std::ofstream(model_.path() / "config.json") << R"({"model_type": "paligemma"})";
  const std::string expected_message =
      get_usage_error([&] { models::build_model(model_.path(), at::kCPU, at::kFloat); }, ExitCode::kBadData);
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  EXPECT_EQ(get_usage_error([&] { process.dry_run(request({}, 1)); }, ExitCode::kBadData), expected_message);
  EXPECT_THAT(expected_message, testing::HasSubstr("paligemma"));
  // An error does not end the process either.
  const PresetFolder tiny("smolvlm-tiny");
  process.set_job(tiny.job());
  EXPECT_THAT(process.dry_run({.step_config = {}, .steps = {{{tiny.shape({.images = 0}), 1}}}}).steps, SizeIs(1));
}

TEST_F(DryRunTest, AFolderWithoutConfigIsTheSameErrorAsInProcess) {
  Job job = model_.job();
  job.model = "/nowhere";
  DryRunProcess process(job, {.gpu = "h100", .memory_bytes = kUnlimited});
  EXPECT_EQ(get_usage_error([&] { process.dry_run(request({}, 1)); }, ExitCode::kBadData),
            get_usage_error([&] { models::build_model("/nowhere", at::kCPU, at::kFloat); }, ExitCode::kBadData));
}

TEST_F(DryRunTest, TheDestructorReapsTheChild) {
  { DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited}); }
  siginfo_t exit_info{};
  errno = 0;
  EXPECT_EQ(waitid(P_ALL, 0, &exit_info, WEXITED | WNOHANG | WNOWAIT), -1) << "process " << exit_info.si_pid;
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(DryRunTest, AnUnknownGpuIsAnError) {
  DryRunProcess process(model_.job(), {.gpu = "nonsense", .memory_bytes = kUnlimited});
  EXPECT_ANY_THROW(process.dry_run(request({}, 1)));
}

}  // namespace
}  // namespace vlmtrain::planner
