#include <signal.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "distributed/ranks_of_threads.h"
#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Runs of several processes on the CPU, beside one.
class RanksTest : public CommandTest {
 protected:
  using Settings = std::vector<std::string>;

  static constexpr int kSteps = 6;

  static Settings settings(const std::string& dir, const Settings& more = {}) {
    Settings all{"output.dir=" + dir, "training.global_batch_size=12", "training.max_steps=" + std::to_string(kSteps),
                 "output.sample_predictions=0", "output.report=false"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  Result train_on_ranks(int ranks, const Settings& overrides) const {
    auto arguments = train_arguments(overrides);
    arguments.insert(arguments.end(), {"--launch", std::to_string(ranks)});
    return run(arguments);
  }

  /// What all ranks say is said once.
  static int count_errors(const Result& result) {
    constexpr std::string_view kError = "vlmtrain: error: ";
    int count = 0;
    for (size_t at = result.err.find(kError); at != std::string::npos; at = result.err.find(kError, at + 1)) ++count;
    return count;
  }

  void expect_training_on_ranks(int ranks, const Settings& overrides) const {
    const Result result = train_on_ranks(ranks, overrides);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("decoded samples wait"))) << "there is room for them";
    EXPECT_THAT(result.err, Not(HasSubstr("no plan could be made")));
  }

  /// Losses, norms, samples and counts of one process and of several.
  void expect_same_steps(const std::string& single, const std::string& several, double tolerance) const {
    const auto expected = step_lines(single + "/metrics.jsonl"), actual = step_lines(several + "/metrics.jsonl");
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      for (const char* key : {"step", "epoch", "tokens", "label_tokens", "images", "samples", "skipped"}) {
        EXPECT_EQ(actual[i][key], expected[i][key]) << key << " of step " << i + 1;
      }
      // One process that is cut otherwise has norms as far apart (docs/benchmarks/ranks.md).
      for (const auto& [key, rounding] : {std::pair{"loss", tolerance}, {"grad_norm", 5 * tolerance}}) {
        const double value = expected[i][key];
        EXPECT_NEAR(actual[i][key].get<double>(), value, rounding * std::abs(value)) << key << " of step " << i + 1;
      }
    }
    const auto expected_samples = step_lines(single + "/samples.jsonl"),
               actual_samples = step_lines(several + "/samples.jsonl");
    ASSERT_EQ(actual_samples.size(), expected_samples.size());
    for (size_t i = 0; i < expected_samples.size(); ++i) {
      auto ids = expected_samples[i]["ids"].get<std::multiset<std::string>>();
      EXPECT_EQ(actual_samples[i]["ids"].get<std::multiset<std::string>>(), ids) << "step " << i + 1;
    }
    EXPECT_EQ(json_file(several + "/ledger.json"), json_file(single + "/ledger.json"));
  }

  /// One of two ranks, started by hand.
  std::unique_ptr<Process> start_rank(int rank, int64_t port, const Settings& overrides) const {
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    const auto rank_folder = folder() / ("streams-" + std::to_string(rank));
    std::filesystem::create_directories(rank_folder);
    auto absolute = train_arguments(overrides);
    for (const char* name : {"train.yaml", "train.json", "images"}) {
      if (!std::filesystem::exists(rank_folder / name))
        std::filesystem::create_symlink(folder() / name, rank_folder / name);
    }
    auto process = std::make_unique<Process>(rank_folder, absolute);
    for (const char* name : {"WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
    return process;
  }

  /// Two ranks of a long run in the folder run, which have done some steps.
  std::pair<std::unique_ptr<Process>, std::unique_ptr<Process>> start_two_that_train() const {
    const int64_t port = distributed::free_port();
    const auto endless = settings((folder() / "run").string(), {"training.max_steps=100000"});
    auto first = start_rank(0, port, endless), second = start_rank(1, port, endless);
    wait_until(*first, [&] {
      return std::filesystem::exists(folder() / "run/metrics.jsonl") && step_lines("run/metrics.jsonl").size() > 3;
    });
    return {std::move(first), std::move(second)};
  }
};

struct Variant {
  std::string name;
  std::vector<std::string> settings;
  double tolerance = 2e-6;
};

class DataParallelTest : public RanksTest, public testing::WithParamInterface<Variant> {};

TEST_P(DataParallelTest, LearnsTheSameAsOneProcess) {
  auto tasks = records();
  for (size_t i = 0; i < tasks.size(); ++i) tasks[i]["task"] = i % 3 == 0 ? "caption" : "question";
  write_records(tasks);
  train_well(settings("one", GetParam().settings));
  for (const int ranks : {2, 3, 4}) {
    const std::string dir = "run-" + std::to_string(ranks);
    expect_training_on_ranks(ranks, settings(dir, GetParam().settings));
    expect_same_steps("one", dir, GetParam().tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, DataParallelTest,
    testing::Values(
        Variant{"MixedBatches", {}}, Variant{"SmallMicroBatches", {"training.micro_batch_size=1"}},
        Variant{"Lora", {"lora.rank=4", "lora.dropout=0.2"}}, Variant{"Nf4", {"lora.rank=4", "model.quantization=nf4"}},
        Variant{"GradNorm", {"training.task_weighting=gradnorm", "training.gradnorm_learning_rate=0.5"}},
        Variant{"PcGrad", {"training.gradient_conflicts=pcgrad"}},
        Variant{"Packs", {"data.packing=true", "data.pack_max_tokens=200"}},
        Variant{"SharedStates", {"distributed.sharding=optimizer"}},
        Variant{"SharedStatesOfLora", {"distributed.sharding=optimizer", "lora.rank=4", "lora.dropout=0.2"}},
        Variant{"SharedStatesOfNf4", {"distributed.sharding=optimizer", "lora.rank=4", "model.quantization=nf4"}},
        Variant{"SharedStatesOfAFrozenTower",
                {"distributed.sharding=optimizer", "model.freeze_vision_tower=true", "memory.recompute=all"}},
        Variant{"SharedStatesWithEvaluations",
                {"distributed.sharding=optimizer", "data.eval=0.2", "training.eval_steps=2",
                 "training.eval_max_new_tokens=2"}},
        Variant{"SharedStatesWithGradNorm",
                {"distributed.sharding=optimizer", "training.task_weighting=gradnorm",
                 "training.gradnorm_learning_rate=0.5"}},
        Variant{"SharedWeights", {"distributed.sharding=full"}},
        Variant{"SharedWeightsOfNf4", {"distributed.sharding=full", "lora.rank=4", "model.quantization=nf4"}},
        Variant{
            "SharedWeightsWithEvaluations",
            {"distributed.sharding=full", "data.eval=0.2", "training.eval_steps=2", "training.eval_max_new_tokens=2"}},
        Variant{"SharedWeightsAndPacks",
                {"distributed.sharding=full", "data.packing=true", "data.pack_max_tokens=200"}},
        // Products of 16 bits differ by the shapes in which they are made.
        Variant{"Fp16", {"training.precision=fp16"}, 2e-3}),
    [](const auto& instance) { return instance.param.name; });

TEST_F(RanksTest, IsDeterministicAcrossRuns) {
  for (const char* dir : {"first", "second"}) expect_training_on_ranks(2, settings(dir));
  EXPECT_EQ(read_text(folder() / "first/checkpoints/step-6/model.safetensors"),
            read_text(folder() / "second/checkpoints/step-6/model.safetensors"));
  EXPECT_EQ(read_text(folder() / "first/ledger.json"), read_text(folder() / "second/ledger.json"));
}

TEST_F(RanksTest, ResumesWithAnotherWorldSize) {
  const Settings saving{"output.save_steps=2", "output.keep=9"};
  train_well(settings("one", saving));
  expect_training_on_ranks(3, settings("run", saving));
  for (const int ranks : {1, 4, 2}) {
    std::filesystem::remove_all(folder() / "run/checkpoints/step-6");
    if (ranks == 4) std::filesystem::remove_all(folder() / "run/checkpoints/step-4");
    expect_training_on_ranks(ranks, settings("run", saving));
    expect_same_steps("one", "run", 2e-6);
  }
}

class ShardingTest : public RanksTest, public testing::WithParamInterface<const char*> {};

TEST_P(ShardingTest, ResumesWithAnotherShardCount) {
  const Settings saving{"output.save_steps=2", "output.keep=9", std::string("distributed.sharding=") + GetParam()};
  train_well(settings("one", saving));
  expect_training_on_ranks(3, settings("run", saving));
  const auto state = folder() / "run/checkpoints/step-6/trainer_state";
  EXPECT_TRUE(std::filesystem::exists(state / "optimizer-00003-of-00003.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(state / "optimizer.safetensors"));
  for (const int ranks : {1, 4, 2}) {
    std::filesystem::remove_all(folder() / "run/checkpoints/step-6");
    if (ranks == 4) std::filesystem::remove_all(folder() / "run/checkpoints/step-4");
    expect_training_on_ranks(ranks, settings("run", saving));
    expect_same_steps("one", "run", 2e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Sharding, ShardingTest, testing::Values("optimizer", "full"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_F(RanksTest, NamesAMissingStateShard) {
  const Settings sharing{"output.save_steps=2", "output.keep=9", "distributed.sharding=optimizer"};
  expect_training_on_ranks(2, settings("run", sharing));
  std::filesystem::remove(folder() / "run/checkpoints/step-6/trainer_state/optimizer-00002-of-00002.safetensors");
  Settings longer = sharing;
  longer.insert(longer.end(), {"training.max_steps=8", "training.resume=changed"});
  for (const int ranks : {1, 2}) {
    const Result result = train_on_ranks(ranks, settings("run", longer));
    EXPECT_EQ(result.exit_code, 4) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("optimizer-00002-of-00002.safetensors: is missing"), HasSubstr("step-4")));
    EXPECT_EQ(count_errors(result), 1) << result.err;
  }
}

/// As a copy of half a checkpoint leaves it.
TEST_F(RanksTest, NamesAForeignStateShard) {
  const Settings sharing{"output.save_steps=2", "output.keep=9", "distributed.sharding=full"};
  expect_training_on_ranks(2, settings("run", sharing));
  const auto read_state = [&](int step) {
    return folder() / ("run/checkpoints/step-" + std::to_string(step)) / "trainer_state";
  };
  const auto first = read_state(6) / "optimizer-00001-of-00002.safetensors";
  const auto second = read_state(6) / "optimizer-00002-of-00002.safetensors";
  constexpr auto kInPlace = std::filesystem::copy_options::overwrite_existing;
  Settings longer = sharing;
  longer.insert(longer.end(), {"training.max_steps=8", "training.resume=changed"});
  std::filesystem::copy_file(read_state(4) / second.filename(), second, kInPlace);
  const Result older = train_on_ranks(2, settings("run", longer));
  EXPECT_EQ(older.exit_code, 4) << older.err;
  EXPECT_THAT(older.err,
              AllOf(HasSubstr("optimizer-00002-of-00002.safetensors: is of step 4"), HasSubstr("of step 6")));
  std::filesystem::copy_file(first, second, kInPlace);
  const Result twice = train_on_ranks(2, settings("run", longer));
  EXPECT_EQ(twice.exit_code, 4) << twice.err;
  EXPECT_THAT(twice.err, HasSubstr("optimizer-00002-of-00002.safetensors: holds part 1 of the optimizer's state"));
}

TEST_P(ShardingTest, HostPlanMatchesMeasurement) {
  expect_training_on_ranks(2, settings("run", {std::string("distributed.sharding=") + GetParam()}));
  const auto plan = json_file("run/plan.json");
  const auto planned = plan["memory"]["allocated_peak_bytes"].get<double>();
  const auto measured = plan["measured"]["allocated_peak_bytes"].get<double>();
  EXPECT_LT(measured, 1.02 * planned);
  EXPECT_GT(measured, 0.8 * planned);
}

/// In all ranks, whatever each of them has found. The model is so large that moments count among what a process takes.
TEST_F(RanksTest, ChoosesAShardingThatFits) {
  const auto wide = folder() / "wide";
  std::filesystem::copy(checkpoint(), wide);
  auto config = json_file("wide/config.json");
  config["text_config"]["intermediate_size"] = 131072;
  write_text(wide / "config.json", config.dump());
  write_text(wide / "model.safetensors", std::string("\2\0\0\0\0\0\0\0{}", 10));
  const Settings min_limit{"model.path=wide",
                           "model.allow_missing=[model, lm_head]",
                           "training.micro_batch_size=1",
                           "training.max_steps=2",
                           "memory.recompute=all",
                           "training.global_batch_size=2",
                           "distributed.sharding=auto"};
  expect_training_on_ranks(2, settings("ample", min_limit));
  const auto unsharded_plan = json_file("ample/plan.json");
  EXPECT_EQ(unsharded_plan["sharding"], "none");
  // A part of what one rank's part of the moments takes less; what the process has beside tensors changes by some MB.
  const double moments = unsharded_plan["memory"]["optimizer_bytes"].get<double>();
  ASSERT_GT(moments, 2e8);
  const double limit = (unsharded_plan["memory"]["total_bytes"].get<double>() - moments / 8) / 0.95;
  Settings tight = min_limit;
  tight.push_back("memory.limit_gb=" + std::to_string(limit / 1e9));
  const Result result = train_on_ranks(2, settings("tight", tight));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("distributed.sharding: optimizer"));
  EXPECT_EQ(json_file("tight/plan.json")["sharding"], "optimizer");
}

TEST_P(ShardingTest, RejectsPcGrad) {
  const Settings conflicting_settings{std::string("distributed.sharding=") + GetParam(),
                                      "training.gradient_conflicts=pcgrad"};
  const Result result = train_on_ranks(2, settings("run", conflicting_settings));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("PCGrad compares whole gradients"));
}

/// Four ranks of one machine, taken for two machines with two each.
TEST_F(RanksTest, HybridShardsWithinANode) {
  const Settings sharing{"distributed.sharding=hybrid"};
  train_well(settings("one"));
  setenv("VLMTRAIN_RANKS_OF_A_NODE", "2", 1);
  expect_training_on_ranks(4, settings("run", sharing));
  expect_same_steps("one", "run", 2e-6);
  setenv("VLMTRAIN_RANKS_OF_A_NODE", "3", 1);
  const Result uneven = train_on_ranks(4, settings("uneven", sharing));
  unsetenv("VLMTRAIN_RANKS_OF_A_NODE");
  EXPECT_EQ(uneven.exit_code, 2);
  EXPECT_THAT(uneven.err, HasSubstr("does not divide 4 ranks"));
}

TEST_F(RanksTest, RankZeroWritesTheFolder) {
  expect_training_on_ranks(2, settings("run"));
  EXPECT_TRUE(std::filesystem::exists(folder() / "run/rank-1.log"));
  EXPECT_THAT(read_text(folder() / "run/rank-1.log"), HasSubstr("6 steps done"));
  EXPECT_EQ(step_lines("run/metrics.jsonl").size(), 6U);
}

/// Its header is whole, so that only the rank that makes the sample finds it, when its turn comes.
TEST_F(RanksTest, BadSampleIsDroppedOnAllRanks) {
  auto all = records();
  const auto with_image = std::ranges::find_if(all, [](const auto& record) { return record.contains("image"); });
  ASSERT_NE(with_image, all.end());
  const std::string original = read_text(folder() / "images" / (*with_image)["image"].get<std::string>());
  write_text(folder() / "images/cut.png", original.substr(0, original.size() * 2 / 3));
  (*with_image)["image"] = "cut.png";
  write_records(all);
  const Settings skipping{"data.on_bad_sample=skip"};
  train_well(settings("one", skipping));
  EXPECT_EQ(json_file("one/ledger.json")["dropped"], 1);
  for (const int ranks : {2, 3}) {
    const std::string dir = "run-" + std::to_string(ranks);
    expect_training_on_ranks(ranks, settings(dir, skipping));
    expect_same_steps("one", dir, 2e-6);
  }
  const Result stopped = train_on_ranks(2, settings("stopped"));
  EXPECT_EQ(stopped.exit_code, 4) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("cut.png"));
  EXPECT_EQ(count_errors(stopped), 1) << stopped.err;
}

TEST_F(RanksTest, RejectsAnUnevenWorldSize) {
  const Result result = train_on_ranks(5, settings("run"));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              HasSubstr("cannot be divided among 5 ranks; the global batch is kept exactly, so choose 10 or 15"));
  EXPECT_EQ(count_errors(result), 1) << result.err;
}

TEST_F(RanksTest, StopOfOneRankStopsAll) {
  const auto [first, second] = start_two_that_train();
  second->send(SIGTERM);
  const Result result = first->wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_EQ(second->wait().exit_code, 75);
  EXPECT_THAT(result.err, HasSubstr("a signal to another rank"));
  EXPECT_FALSE(entries(folder() / "run/checkpoints").empty());
}

/// What one Ctrl-C, a closed terminal, `timeout` or SLURM send to a process group: the launcher and its ranks have it.
class SignalToProcessGroup : public RanksTest, public testing::WithParamInterface<int> {};

TEST_P(SignalToProcessGroup, IsOneStopRequest) {
  auto arguments = train_arguments(settings("run", {"training.max_steps=100000"}));
  arguments.insert(arguments.end(), {"--launch", "2"});
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

/// What is sent to rank 1 of two that train, what rank 0 says of it, and within which time it has to.
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
  // The same command goes on.
  expect_training_on_ranks(2, settings("run", {"training.resume=changed", "training.max_steps=200"}));
}

INSTANTIATE_TEST_SUITE_P(By, LostRankTest,
                         testing::Values(Loss{SIGKILL, "is gone", 15s}, Loss{SIGSTOP, "has not been heard of", 30s}),
                         [](const auto& instance) { return instance.param.signal == SIGKILL ? "Kill" : "Stop"; });

/// The process that launches them does not wait for one that cannot end by itself.
TEST_F(RanksTest, SuspendedRankEndsTheLaunch) {
  auto arguments = train_arguments(settings("run", {"training.max_steps=100000"}));
  arguments.insert(arguments.end(), {"--launch", "2"});
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
  EXPECT_THAT(result.err, HasSubstr("has not been heard of"));
  EXPECT_NE(kill(second, 0), 0) << "it is still there";
}

TEST_F(RanksTest, RejectsDifferentSettings) {
  const int64_t port = distributed::free_port();
  const auto dir = (folder() / "run").string();
  const auto first = start_rank(0, port, settings(dir));
  const auto second = start_rank(1, port, settings(dir, {"training.learning_rate=0.5"}));
  const Result result = first->wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("rank 1 has another configuration than rank 0"));
  EXPECT_EQ(second->wait().exit_code, 2);
}

TEST_F(RanksTest, NamesVariablesOfAnotherLauncher) {
  for (const auto& [name, launcher] : {std::pair("WORLD_SIZE", "torchrun"), std::pair("PMI_SIZE", "mpirun")}) {
    auto arguments = train_arguments(settings("run"));
    arguments.insert(arguments.end(), {"--launch", "2"});
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
