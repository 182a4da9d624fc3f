#include <signal.h>

#include <chrono>
#include <sstream>
#include <string>
#include <vector>

#include "distributed/thread_ranks.h"
#include "e2e/distributed/ranks.h"

namespace vlmtrain::e2e {

namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

TEST_F(RanksTest, StopOfOneRankStopsAll) {
  const auto [first, second] = start_two_that_train();
  second->send(SIGTERM);
  const Result result = first->wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_EQ(second->wait().exit_code, 75);
  EXPECT_THAT(result.err, HasSubstr("a signal to another rank"));
  EXPECT_FALSE(entries(folder() / "run/checkpoints").empty());
}

/// The launcher and its ranks all receive a signal to the process group: one Ctrl-C, a closed
/// terminal, `timeout` or SLURM.
class SignalToProcessGroup : public RanksTest, public testing::WithParamInterface<int> {};

TEST_P(SignalToProcessGroup, IsOneStopRequest) {
  auto arguments = train_arguments(settings("run", {"training.max_steps=100000"}));
  arguments.insert(arguments.end(), {"--nproc-per-node", "2"});
  Process launcher(folder(), arguments);
  wait_until(launcher, [&] {
    return std::filesystem::exists(folder() / "run/metrics.jsonl") && step_lines("run/metrics.jsonl").size() > 3;
  });
  const auto id = std::to_string(launcher.id());
  std::istringstream children(read_text("/proc/" + id + "/task/" + id + "/children"));
  pid_t first = 0, second = 0;
  ASSERT_TRUE(children >> first >> second);
  for (const pid_t process : {launcher.id(), first, second}) ASSERT_EQ(kill(process, GetParam()), 0);
  const Result result = launcher.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_FALSE(entries(folder() / "run/checkpoints").empty());
  EXPECT_EQ(count_errors(result), 0) << result.err;
}

INSTANTIATE_TEST_SUITE_P(With, SignalToProcessGroup, testing::Values(SIGINT, SIGTERM, SIGHUP));

/// The signal that rank 1 of two receives, the message of rank 0, and the time it has.
struct Loss {
  int signal;
  const char* words;
  std::chrono::seconds within;
};

class LostRankTest : public RanksTest, public testing::WithParamInterface<Loss> {};

TEST_P(LostRankTest, EndsAllRanks) {
  const auto [first, second] = start_two_that_train();
  const auto start = std::chrono::steady_clock::now();
  second->send(GetParam().signal);
  const Result result = first->wait();
  EXPECT_LT(std::chrono::steady_clock::now() - start, GetParam().within);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("rank 1: process " + std::to_string(second->id())), HasSubstr(GetParam().words)));
  second->send(SIGKILL);
  second->wait();
  // The same command resumes.
  const auto max_steps = std::to_string(step_lines("run/metrics.jsonl").size() + 5);
  expect_training_on_ranks(2, settings("run", {"training.resume=changed", "training.max_steps=" + max_steps}));
}

INSTANTIATE_TEST_SUITE_P(By, LostRankTest,
                         testing::Values(Loss{SIGKILL, " disconnected: it was killed", 15s},
                                         Loss{SIGSTOP, "has not responded for", 30s}),
                         [](const auto& instance) { return instance.param.signal == SIGKILL ? "Kill" : "Stop"; });

/// The launcher does not wait for a rank that cannot end by itself.
TEST_F(RanksTest, SuspendedRankEndsTheLaunch) {
  auto arguments = train_arguments(settings("run", {"training.max_steps=100000"}));
  arguments.insert(arguments.end(), {"--nproc-per-node", "2"});
  Process launcher(folder(), arguments);
  wait_until(launcher, [&] {
    return std::filesystem::exists(folder() / "run/metrics.jsonl") && step_lines("run/metrics.jsonl").size() > 3;
  });
  const auto id = std::to_string(launcher.id());
  std::istringstream children(read_text("/proc/" + id + "/task/" + id + "/children"));
  pid_t first = 0, second = 0;
  ASSERT_TRUE(children >> first >> second);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(kill(second, SIGSTOP), 0);
  const Result result = launcher.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, HasSubstr("has not responded for"));
  EXPECT_NE(kill(second, 0), 0) << "it still runs";
}

TEST_F(RanksTest, RejectsDifferentSettings) {
  const int64_t port = distributed::free_port();
  const auto dir = (folder() / "run").string();
  const auto first = start_rank(0, port, settings(dir));
  const auto second = start_rank(1, port, settings(dir, {"training.learning_rate=0.5"}));
  const Result result = first->wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("rank 1 has a different configuration than rank 0"));
  EXPECT_EQ(second->wait().exit_code, 2);
}

TEST_F(RanksTest, NamesVariablesOfAnotherLauncher) {
  for (const auto& [name, launcher] : {std::pair("WORLD_SIZE", "torchrun"), std::pair("PMI_SIZE", "mpirun")}) {
    auto arguments = train_arguments(settings("run"));
    arguments.insert(arguments.end(), {"--nproc-per-node", "2"});
    setenv(name, "4", 1);
    const Result result = Process(folder(), arguments).wait();
    unsetenv(name);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, AllOf(HasSubstr(std::string(name) + "=4"), HasSubstr(launcher), HasSubstr("left over")));
  }
}

TEST_F(RanksTest, RequiresARendezvousAddress) {
  setenv("WORLD_SIZE", "2", 1);
  setenv("RANK", "0", 1);
  const Result result = train(settings("run"));
  unsetenv("WORLD_SIZE");
  unsetenv("RANK");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("MASTER_ADDR is not set"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "run"));
}

}  // namespace

}  // namespace vlmtrain::e2e
