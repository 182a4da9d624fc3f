#include <fmt/format.h>

#include <random>
#include <set>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;
using testing::Not;

/// Runs of 40 steps, about four passes over eleven records, one of which has no image and is
/// skipped.
class ResumeTest : public CommandTest {
 protected:
  static constexpr size_t kSteps = 40;

  void SetUp() override {
    CommandTest::SetUp();
    auto with_a_bad_one = records();
    with_a_bad_one[5]["image"] = "nowhere.png";
    write_records(with_a_bad_one);
  }

  static std::vector<std::string> settings(const std::string& dir, int save_steps) {
    return {"output.dir=" + dir, "output.save_steps=" + std::to_string(save_steps),
            "training.max_steps=" + std::to_string(kSteps), "data.on_bad_sample=skip"};
  }

  size_t steps_logged(const std::string& dir) const {
    return split_lines(read_text(folder() / dir / "metrics.jsonl")).size();
  }

  size_t checkpoints(const std::string& dir) const {
    const auto path = folder() / dir / "checkpoints";
    size_t newest = 0;
    if (!std::filesystem::exists(path)) return newest;
    for (const auto& name : entries(path)) {
      if (name.starts_with("step-")) newest = std::max(newest, static_cast<size_t>(std::stoul(name.substr(5))));
    }
    return newest;
  }

  /// Expects that all files of the run equal those of `uninterrupted` bit for bit, except
  /// durations.
  void expect_same(const std::string& uninterrupted, const std::string& resumed) const {
    const auto expected = step_lines(uninterrupted + "/metrics.jsonl");
    const auto actual = step_lines(resumed + "/metrics.jsonl");
    ASSERT_EQ(expected.size(), kSteps);
    ASSERT_EQ(actual.size(), kSteps);
    for (size_t i = 0; i < kSteps; ++i) {
      for (const char* key : {"step", "epoch", "loss", "learning_rate", "grad_norm", "tokens", "label_tokens", "images",
                              "samples", "micro_batches"}) {
        EXPECT_EQ(expected[i][key].dump(), actual[i][key].dump()) << key << " of step " << i + 1;
      }
    }
    for (const char* file : {"samples.jsonl", "ledger.json", "checkpoints/step-40/model.safetensors",
                             "checkpoints/step-40/trainer_state/optimizer.safetensors"}) {
      EXPECT_EQ(read_text(folder() / uninterrupted / file), read_text(folder() / resumed / file)) << file;
    }
    EXPECT_EQ(entries(folder() / uninterrupted), entries(folder() / resumed)) << "temporary files remain";
    const auto ledger = json_file(uninterrupted + "/ledger.json");
    EXPECT_EQ(ledger["used"], kRecords - 1);
    EXPECT_EQ(ledger["dropped"], 1);
  }

  /// Kills the run "pieces" and resumes it, and expects the files of `uninterrupted`.
  void expect_same_after_kills(const std::string& uninterrupted, const std::vector<std::string>& pieces,
                               int num_kills) const;
};

void ResumeTest::expect_same_after_kills(const std::string& uninterrupted, const std::vector<std::string>& pieces,
                                         int num_kills) const {
  const auto arguments = train_arguments(pieces);
  std::mt19937 random(20240607);
  std::set<size_t> killed_after;
  for (int kill = 0; kill < num_kills; ++kill) {
    Process process(folder(), arguments);
    // The first kills hit the start, the others a step or its checkpoint some steps later.
    const size_t goal = checkpoints("pieces") + (kill < 2 ? 0 : 1);
    wait_until(process, [&] { return checkpoints("pieces") >= goal; });
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 100));
    process.send(SIGKILL);
    process.wait();
    killed_after.insert(checkpoints("pieces"));
  }
  EXPECT_GT(killed_after.size(), 3U);
  const Result last = run(arguments);
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_THAT(last.err, Not(HasSubstr("has no effect")));
  expect_same(uninterrupted, "pieces");
  EXPECT_EQ(entries(folder() / uninterrupted / "checkpoints"), entries(folder() / "pieces/checkpoints"));
}

struct OptimizerCase {
  const char* precision;
  const char* states;
  const char* optimizer = "adamw";
};

class InterruptedRun : public ResumeTest, public testing::WithParamInterface<OptimizerCase> {
 protected:
  static std::vector<std::string> settings_of_case(const std::string& dir) {
    auto all = settings(dir, 0);
    all.push_back(std::string("training.precision=") + GetParam().precision);
    all.push_back(std::string("training.optimizer_states=") + GetParam().states);
    all.push_back(std::string("training.optimizer=") + GetParam().optimizer);
    all.push_back("training.loss_scale_growth_steps=7");
    return all;
  }
};

TEST_P(InterruptedRun, ResumesExactlyAfterSigterm) {
  train_well(settings_of_case("whole"));

  const auto arguments = train_arguments(settings_of_case("pieces"));
  Process first(folder(), arguments);
  wait_until(first, [&] { return steps_logged("pieces") >= 5; });
  first.send(SIGTERM);
  const Result stopped = first.wait();
  EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("stopped by signal 15"));
  const size_t num_checkpoints = checkpoints("pieces");
  EXPECT_GE(num_checkpoints, 5U);
  EXPECT_LT(num_checkpoints, kSteps);
  EXPECT_EQ(steps_logged("pieces"), num_checkpoints);

  const Result second = run(arguments);
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, HasSubstr("resuming after step " + std::to_string(num_checkpoints)));
  expect_same("whole", "pieces");
}

INSTANTIATE_TEST_SUITE_P(With, InterruptedRun,
                         testing::Values(OptimizerCase{"fp32", "fp32"}, OptimizerCase{"bf16", "bf16"},
                                         OptimizerCase{"fp16", "8bit"}, OptimizerCase{"bf16", "fp32", "muon"}),
                         [](const auto& instance) {
                           const OptimizerCase& tested = instance.param;
                           return fmt::format("{}_{}_states_{}", tested.precision, tested.states, tested.optimizer);
                         });

TEST_F(ResumeTest, StopPrintsOneJsonObject) {
  auto arguments = train_arguments(settings("pieces", 0));
  arguments.emplace_back("--json");
  Process process(folder(), arguments);
  wait_until(process, [&] { return steps_logged("pieces") >= 2; });
  process.send(SIGINT);
  const Result stopped = process.wait();
  EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
  EXPECT_EQ(nlohmann::json::parse(stopped.out)["stopped"], true);
}

TEST_F(ResumeTest, KillsLoseNothing) {
  train_well(settings("whole", 1));
  expect_same_after_kills("whole", settings("pieces", 1), 8);
}

/// State, weights, gradients and inputs of blocks are in a host arena, from which checkpoints are written.
TEST_F(ResumeTest, KillsOfARunInHostMemoryLoseNothing) {
  train_well(settings("whole", 1));
  setenv("VLMTRAIN_OFFLOAD_ON_CPU", "1", 1);
  auto offloaded = settings("pieces", 1);
  offloaded.insert(offloaded.end(),
                   {"memory.offload=gradients", "memory.offload_activations=true", "memory.recompute=all"});
  expect_same_after_kills("whole", offloaded, 20);
  unsetenv("VLMTRAIN_OFFLOAD_ON_CPU");
}

TEST_F(ResumeTest, RewritesATruncatedMetricsLine) {
  train_well(settings("whole", 10));
  train_well(settings("pieces", 10));
  std::filesystem::remove_all(folder() / "pieces/checkpoints/step-40");
  std::filesystem::resize_file(folder() / "pieces/metrics.jsonl",
                               std::filesystem::file_size(folder() / "pieces/metrics.jsonl") - 40);
  train_well(settings("pieces", 10));
  expect_same("whole", "pieces");
}

TEST_F(ResumeTest, NamesChangedSettings) {
  train_well({"data.on_bad_sample=skip"});
  const std::string metrics = read_text(folder() / "run/metrics.jsonl");
  auto fewer = records();
  fewer.erase(0);
  write_text(folder() / "other.json", fewer.dump());

  const std::vector<std::pair<std::string, std::string>> changes{
      {"training.seed=7", "training.seed: was 0, is 7"},
      {"training.global_batch_size=2", "training.global_batch_size: was 4, is 2"},
      {"training.max_steps=9", "steps (training.max_steps or training.epochs): was 4, is 9"},
      {"training.lr_scheduler=linear", "training.lr_scheduler: was cosine, is linear"},
      {"training.warmup_ratio=0.5", "training.warmup_ratio: was 0.03, is 0.5"},
      {"training.weight_decay=0.1", "training.weight_decay: was 0, is 0.1"},
      {"training.precision=bf16", "training.precision: was fp32, is bf16"},
      {"model.freeze_vision_tower=true", "model.freeze_vision_tower: was false, is true"},
      {"data.train=other.json", "data.train: was train.json, is other.json"}};
  for (const auto& [change, message] : changes) {
    const Result refused = train({"data.on_bad_sample=skip", change});
    EXPECT_EQ(refused.exit_code, 2) << change;
    EXPECT_THAT(refused.err, HasSubstr(message));
    EXPECT_THAT(refused.err, HasSubstr("output.dir"));
  }
  EXPECT_EQ(read_text(folder() / "run/metrics.jsonl"), metrics) << "a rejected run changed the folder";
  EXPECT_EQ(json_file("run/ledger.json")["samples"], kRecords);
}

TEST_F(ResumeTest, TheDataFileMayNotShrink) {
  train_well({"data.on_bad_sample=skip"});
  auto fewer = records();
  fewer.erase(0);
  write_records(fewer);
  const Result refused = train({"data.on_bad_sample=skip"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("samples in data.train: was 11, is 10"));
}

TEST_F(ResumeTest, AcceptsNeutralChanges) {
  train_well(settings("whole", 0));
  Process process(folder(), train_arguments(settings("pieces", 0)));
  wait_until(process, [&] { return steps_logged("pieces") >= 3; });
  process.send(SIGTERM);
  ASSERT_EQ(process.wait().exit_code, 75);
  auto changed = settings("pieces", 30);
  changed.insert(changed.end(), {"data.num_workers=1", "output.save_total_limit=1", "memory.recompute=all",
                                 "memory.offload=optimizer"});
  const Result result = train(changed);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("memory.offload has no effect"));
  expect_same("whole", "pieces");
}

TEST_F(ResumeTest, ResumeNeverRejectsAnExistingRun) {
  train_well({"data.on_bad_sample=skip", "training.resume=never"});
  const Result refused = train({"data.on_bad_sample=skip", "training.resume=never"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("run already contains a run (step-4)"));
  EXPECT_THAT(refused.err, Not(HasSubstr("resuming")));
}

}  // namespace

}  // namespace vlmtrain::e2e
