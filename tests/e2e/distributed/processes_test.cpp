#include <sched.h>
#include <sys/mount.h>

#include <charconv>
#include <optional>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

/// Processes that receive signals, are killed, or run twice.
class ProcessesTest : public CommandTest {
 protected:
  const std::vector<std::string> kLong{"training.max_steps=1000000", "output.report=false", "output.tensorboard=false",
                                       "output.sample_predictions=0"};
  const std::vector<std::string> kVirtual{"--device", "virtual:rtx4090"};

  std::vector<std::string> long_run(const std::vector<std::string>& more = {}) const {
    auto all = train_arguments(kLong);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> long_virtual_run() const {
    std::vector<std::string> all{"--config", "train.yaml"};
    all.insert(all.end(), kVirtual.begin(), kVirtual.end());
    all.insert(all.end(), kLong.begin(), kLong.end());
    return all;
  }

  size_t steps_logged(const std::string& dir = "run") const {
    return split_lines(read_text(folder() / dir / "metrics.jsonl")).size();
  }

  bool has_checkpoint() const { return std::filesystem::exists(folder() / "run/checkpoints"); }

  /// Returns the processes in this test's folder, except direct children of this one, from /proc.
  std::vector<pid_t> list_dry_run_processes() const {
    std::vector<pid_t> processes;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      pid_t id = 0;
      if (std::from_chars(name.data(), name.data() + name.size(), id).ec != std::errc()) continue;
      std::error_code error;
      if (std::filesystem::read_symlink(entry.path() / "cwd", error) != std::filesystem::canonical(folder())) continue;
      if (read_text(entry.path() / "cmdline").find("dry-run") != std::string::npos) processes.push_back(id);
    }
    return processes;
  }

  /// Returns whether they end within a short time.
  bool wait_for_dry_runs() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < deadline) {
      if (list_dry_run_processes().empty()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  std::vector<std::string> list_folder(const std::string& dir) const {
    return std::filesystem::exists(folder() / dir) ? entries(folder() / dir) : std::vector<std::string>{};
  }

  void expect_nothing_half_written() const {
    EXPECT_THAT(list_folder("run"), Not(Contains(StartsWith("."))));
    EXPECT_THAT(list_folder("run/checkpoints"), Not(Contains(StartsWith("."))));
    EXPECT_THAT(list_folder("run/virtual-rtx4090"), Not(Contains(StartsWith("."))));
  }
};

/// Signals that request a stop between two steps.
class StopSignalTest : public ProcessesTest, public testing::WithParamInterface<int> {};

TEST_P(StopSignalTest, EndsTheStepAndWritesACheckpoint) {
  Process process(folder(), long_run());
  wait_until(process, [&] { return steps_logged() >= 2; });
  process.send(GetParam());
  const Result stopped = process.wait();
  EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("stopped by signal " + std::to_string(GetParam())));
  EXPECT_THAT(list_folder("run/checkpoints"), ElementsAre("step-" + std::to_string(steps_logged())));
}

INSTANTIATE_TEST_SUITE_P(Signals, StopSignalTest, testing::Values(SIGHUP, SIGPIPE, SIGUSR1));

TEST_F(ProcessesTest, IgnoresHangupUnderNohup) {
  setenv("V", VLMTRAIN_BINARY, 1);
  std::string line = "trap '' HUP; exec $V";
  for (const auto& argument : train_arguments({"training.max_steps=40", "output.report=false"})) line += " " + argument;
  Process process(folder(), {"-c", line}, 0, "/bin/sh");
  wait_until(process, [&] { return steps_logged() >= 2; });
  process.send(SIGHUP);
  EXPECT_EQ(process.wait().exit_code, 0);
  EXPECT_EQ(steps_logged(), 40U);
}

TEST_F(ProcessesTest, SetsTheOpenMpWaitPolicy) {
  setenv("V", VLMTRAIN_BINARY, 1);
  const auto read_core_environment = [&](const std::string& before) {
    std::string line = "unset OMP_WAIT_POLICY GOMP_SPINCOUNT; " + before + " exec $V";
    for (const auto& argument : long_run()) line += " " + argument;
    std::filesystem::remove_all(folder() / "run");
    Process process(folder(), {"-c", line}, 0, "/bin/sh");
    wait_until(process, [&] { return steps_logged() >= 1; });
    const std::string environment = read_text("/proc/" + std::to_string(process.id()) + "/environ");
    process.send(SIGKILL);
    process.wait();
    return environment;
  };
  EXPECT_THAT(read_core_environment(""), AllOf(HasSubstr("OMP_WAIT_POLICY=passive"), HasSubstr("GOMP_SPINCOUNT=1000")));
  EXPECT_THAT(read_core_environment("OMP_WAIT_POLICY=active"),
              AllOf(HasSubstr("OMP_WAIT_POLICY=active"), Not(HasSubstr("GOMP_SPINCOUNT"))));
}

TEST_F(ProcessesTest, SignalWhilePlanningEndsAtOnce) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    Process process(folder(), long_virtual_run());
    wait_until(process, [&] { return !list_dry_run_processes().empty(); });
    process.send(signal);
    const Result stopped = process.wait();
    EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
    EXPECT_THAT(stopped.err, HasSubstr("stopped by signal " + std::to_string(signal) + " before a step was done"));
    EXPECT_THAT(stopped.err, Not(AnyOf(HasSubstr("error"), HasSubstr("terminate"))));
    EXPECT_THAT(stopped.out, IsEmpty());
    EXPECT_TRUE(wait_for_dry_runs()) << "a child still runs";
    expect_nothing_half_written();
  }
}

TEST_F(ProcessesTest, ASignalBeforeTheFirstStepWritesNoCheckpoint) {
  int at_once = 0;
  for (int milliseconds = 0; milliseconds < 400; milliseconds += 40) {
    std::filesystem::remove_all(folder() / "run");
    Process process(folder(), long_run());
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    process.send(SIGTERM);
    const Result stopped = process.wait();
    if (stopped.signal == SIGTERM) continue;  // received before main
    EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
    if (stopped.err.find("before a step was done") != std::string::npos) ++at_once;
    EXPECT_EQ(has_checkpoint(), steps_logged() > 0) << stopped.err;
    EXPECT_THAT(list_folder("run/checkpoints"), Not(Contains("step-0")));
    expect_nothing_half_written();
  }
  RecordProperty("at_once", at_once);
}

TEST_F(ProcessesTest, InterruptedPlanLeavesNoFolder) {
  std::filesystem::create_directory(folder() / "tmp");
  setenv("TMPDIR", (folder() / "tmp").c_str(), 1);
  Process process(folder(), {"plan", "--gpu", "rtx4090", "--model", "smolvlm-256m"});
  wait_until(process, [&] { return !list_dry_run_processes().empty(); });
  process.send(SIGINT);
  const Result stopped = process.wait();
  unsetenv("TMPDIR");
  EXPECT_EQ(stopped.signal, SIGINT) << stopped.err;
  EXPECT_THAT(list_folder("tmp"), IsEmpty());
  EXPECT_TRUE(wait_for_dry_runs()) << "a child still runs";
}

TEST_F(ProcessesTest, FailedPlanEndsItsProcesses) {
  const Result failed = run({"plan", "--gpu", "rtx4090", "--model", "nothing-here"});
  EXPECT_EQ(failed.exit_code, 2) << failed.err;
  EXPECT_TRUE(wait_for_dry_runs()) << "a child still runs";
}

TEST_F(ProcessesTest, IgnoresInheritedChildren) {
  setenv("VLMTRAIN_DRY_RUN_STARTED", "1 0 1", 1);
  const Result plan_result = run({"plan", "--gpu", "rtx4090", "--model", "smolvlm-256m", "--json"});
  unsetenv("VLMTRAIN_DRY_RUN_STARTED");
  EXPECT_EQ(plan_result.exit_code, 0) << plan_result.err;
  EXPECT_TRUE(wait_for_dry_runs()) << "a child still runs";
}

TEST_F(ProcessesTest, KilledRunEndsItsDryRun) {
  {
    Process planning(folder(), long_virtual_run());
    wait_until(planning, [&] { return !list_dry_run_processes().empty(); });
    planning.send(SIGKILL);
    EXPECT_EQ(planning.wait().signal, SIGKILL);
    EXPECT_TRUE(wait_for_dry_runs()) << "the plan's";
  }
  Process running(folder(), long_virtual_run());
  wait_until(running, [&] { return steps_logged("run/virtual-rtx4090") >= 2; });
  EXPECT_THAT(list_dry_run_processes(), Not(IsEmpty())) << "the run's look-ahead";
  running.send(SIGKILL);
  EXPECT_EQ(running.wait().signal, SIGKILL);
  EXPECT_TRUE(wait_for_dry_runs()) << "the look-ahead still runs";
}

TEST_F(ProcessesTest, RejectsASecondRunInTheFolder) {
  Process first(folder(), long_run({"output.save_steps=1", "output.save_total_limit=100000"}));
  const std::string checkpoint = "run/checkpoints/step-2";  // written while later steps run
  wait_until(first, [&] { return std::filesystem::exists(folder() / checkpoint); });

  const Result second = train({"training.max_steps=1000000"});
  EXPECT_EQ(second.exit_code, 2) << second.err;
  EXPECT_THAT(second.err, AllOf(HasSubstr("output.dir: run is in use by another run: process "), HasSubstr(" on "),
                                HasSubstr("since 20"), HasSubstr("choose another output.dir")));
  EXPECT_EQ(run({"report", "run"}).exit_code, 0);
  const Result eval = run({"eval", "--config", "train.yaml", "--checkpoint", checkpoint, "--device", "cpu",
                           "--max-new-tokens", "1", "--json"});
  EXPECT_EQ(eval.exit_code, 0) << eval.err;
  const Result answer =
      run({"generate", "--checkpoint", checkpoint, "--prompt", "hello", "--device", "cpu", "--max-new-tokens", "1"});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;

  ASSERT_TRUE(first.is_running());
  first.send(SIGKILL);
  first.wait();
  Process third(folder(), long_run({"output.save_steps=1", "output.save_total_limit=100000"}));
  const size_t before = steps_logged();
  wait_until(third, [&] { return steps_logged() > before; });
  third.send(SIGTERM);
  const Result stopped = third.wait();
  EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("resuming after step"));
}

TEST_F(ProcessesTest, RejectsAnInvalidCheckpoint) {
  train_well({});
  std::filesystem::create_directory(folder() / "run/checkpoints/step-7");
  const Result refused = train({});
  EXPECT_EQ(refused.exit_code, 4) << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr("step-7: is not a complete checkpoint"), HasSubstr("resume from step-4")));
  std::filesystem::remove(folder() / "run/checkpoints/step-7");
  train_well({});
}

TEST_F(ProcessesTest, WarnsAboutUndeletableCheckpoints) {
  train_well({"output.save_steps=1", "output.save_total_limit=4"});
  for (const char* newer : {"step-3", "step-4"}) std::filesystem::remove_all(folder() / "run/checkpoints" / newer);
  const auto busy = folder() / "run/checkpoints/step-1/busy";
  std::filesystem::create_directory(busy);
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) GTEST_SKIP() << "no namespaces";
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", busy.c_str(), "tmpfs", 0, nullptr) != 0) {
    GTEST_SKIP() << "no permission to mount a tmpfs";
  }
  const Result result = train({"output.save_steps=1", "output.save_total_limit=1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("cannot remove an old checkpoint: Device or resource busy"));
  EXPECT_TRUE(std::filesystem::exists(folder() / "run/checkpoints/step-4"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "run/checkpoints/step-1"));
  for (const auto& name : entries(folder() / "run/checkpoints")) {
    if (name == "step-4") continue;
    EXPECT_EQ(umount((folder() / "run/checkpoints" / name / "busy").c_str()), 0) << name;
  }
}

/// Pipes and devices in place of files, by the key that names them.
TEST_F(ProcessesTest, RejectsPipesAndDevices) {
  ASSERT_EQ(mkfifo((folder() / "pipe").c_str(), 0600), 0);
  ASSERT_EQ(mkfifo((folder() / "images/pipe.png").c_str(), 0600), 0);
  for (const char* key : {"data.train=pipe", "data.train=/dev/zero"}) {
    const Result refused = train({key});
    EXPECT_EQ(refused.exit_code, 4) << refused.err;
    EXPECT_THAT(refused.err, AnyOf(HasSubstr("pipe: is a named pipe"), HasSubstr("/dev/zero: is a device"))) << key;
  }
  auto with_a_pipe = records();
  with_a_pipe[0]["image"] = "pipe.png";
  write_records(with_a_pipe);
  const Result refused = train({});
  EXPECT_EQ(refused.exit_code, 4) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("pipe.png: cannot open the image: it is a named pipe"));
  const Result answer = run({"generate", "--checkpoint", checkpoint().string(), "--prompt", "hello", "--image",
                             "images/pipe.png", "--device", "cpu"});
  EXPECT_EQ(answer.exit_code, 4) << answer.err;
  EXPECT_THAT(answer.err, HasSubstr("it is a named pipe"));
}

}  // namespace

}  // namespace vlmtrain::e2e
