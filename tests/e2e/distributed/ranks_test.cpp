#include "e2e/distributed/ranks.h"

#include <chrono>
#include <string>
#include <vector>

namespace vlmtrain::e2e {

namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

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
  Settings overrides = GetParam().settings;
  overrides.emplace_back("training.max_steps=4");
  train_well(settings("one", overrides));
  for (const int ranks : {2, 3, 4}) {
    const std::string dir = "run-" + std::to_string(ranks);
    expect_training_on_ranks(ranks, settings(dir, overrides));
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
        // 16-bit products depend on the shapes of their matrices.
        Variant{"Fp16", {"training.precision=fp16"}, 2e-3}),
    [](const auto& instance) { return instance.param.name; });

TEST_F(RanksTest, IsDeterministicAcrossRuns) {
  for (const char* dir : {"first", "second"}) expect_training_on_ranks(2, settings(dir));
  EXPECT_EQ(read_text(folder() / "first/checkpoints/step-6/model.safetensors"),
            read_text(folder() / "second/checkpoints/step-6/model.safetensors"));
  EXPECT_EQ(read_text(folder() / "first/ledger.json"), read_text(folder() / "second/ledger.json"));
}

TEST_F(RanksTest, ResumesWithAnotherWorldSize) {
  const Settings saving{"output.save_steps=2", "output.save_total_limit=9"};
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
  const Settings saving{"output.save_steps=2", "output.save_total_limit=9",
                        std::string("distributed.sharding=") + GetParam()};
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
  const Settings sharing{"output.save_steps=2", "output.save_total_limit=9", "distributed.sharding=optimizer"};
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

/// The state of a checkpoint that was half copied.
TEST_F(RanksTest, NamesAForeignStateShard) {
  const Settings sharing{"output.save_steps=2", "output.save_total_limit=9", "distributed.sharding=full"};
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
              AllOf(HasSubstr("optimizer-00002-of-00002.safetensors: is from step 4"), HasSubstr("is from step 6")));
  std::filesystem::copy_file(first, second, kInPlace);
  const Result twice = train_on_ranks(2, settings("run", longer));
  EXPECT_EQ(twice.exit_code, 4) << twice.err;
  EXPECT_THAT(twice.err, HasSubstr("optimizer-00002-of-00002.safetensors: contains shard 1 of the optimizer state"));
}

TEST_P(ShardingTest, HostPlanMatchesMeasurement) {
  expect_training_on_ranks(2, settings("run", {std::string("distributed.sharding=") + GetParam()}));
  const auto plan = json_file("run/plan.json");
  const auto planned = plan["memory"]["allocated_peak_bytes"].get<double>();
  const auto measured = plan["measured"]["allocated_peak_bytes"].get<double>();
  EXPECT_LT(measured, 1.02 * planned);
  EXPECT_GT(measured, 0.8 * planned);
}

/// All ranks choose the same sharding. The model is large enough that moments count among a
/// process's memory.
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
  ASSERT_EQ(train_on_ranks(2, settings("ample", min_limit)).exit_code, 0);
  const auto unsharded_plan = json_file("ample/plan.json");
  EXPECT_EQ(unsharded_plan["sharding"], "none");
  // Half of what sharding saves of the moments; other memory of the process varies by some MB.
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
  EXPECT_THAT(result.err, HasSubstr("PCGrad needs whole gradients"));
}

/// Four ranks of one machine that pretend to be two machines with two ranks each.
TEST_F(RanksTest, HybridShardsWithinANode) {
  const Settings sharing{"distributed.sharding=hybrid"};
  train_well(settings("one"));
  setenv("VLMTRAIN_RANKS_PER_NODE", "2", 1);
  expect_training_on_ranks(4, settings("run", sharing));
  expect_same_steps("one", "run", 2e-6);
  setenv("VLMTRAIN_RANKS_PER_NODE", "3", 1);
  const Result uneven = train_on_ranks(4, settings("uneven", sharing));
  unsetenv("VLMTRAIN_RANKS_PER_NODE");
  EXPECT_EQ(uneven.exit_code, 2);
  EXPECT_THAT(uneven.err, HasSubstr("does not divide 4 ranks"));
}

TEST_F(RanksTest, RankZeroWritesTheFolder) {
  expect_training_on_ranks(2, settings("run"));
  EXPECT_TRUE(std::filesystem::exists(folder() / "run/rank-1.log"));
  EXPECT_THAT(read_text(folder() / "run/rank-1.log"), HasSubstr("6 steps done"));
  EXPECT_EQ(step_lines("run/metrics.jsonl").size(), 6U);
}

/// The image's header is whole, so that only the rank that decodes the sample notices.
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
              HasSubstr("cannot be divided among 5 ranks; the global batch size is exact, so choose 10 or 15"));
  EXPECT_EQ(count_errors(result), 1) << result.err;
}

}  // namespace

}  // namespace vlmtrain::e2e
