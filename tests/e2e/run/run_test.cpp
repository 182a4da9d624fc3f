#include <ATen/core/Tensor.h>

#include <cmath>
#include <map>

#include "e2e/command.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

class RunTest : public CommandTest {};

TEST_F(RunTest, WritesItsFolder) {
  const Result result = train({"training.max_steps=3", "output.save_steps=1", "output.save_total_limit=2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;

  // Exactly one JSON object on stdout.
  ASSERT_EQ(split_lines(result.out).size(), 1U) << result.out;
  const auto summary = nlohmann::json::parse(result.out);
  EXPECT_EQ(summary["stopped"], false);
  EXPECT_EQ(summary["steps"], 3);
  EXPECT_EQ(summary["checkpoint"], "run/checkpoints/step-3");

  // stderr is a file here: plain lines without cursor movements.
  EXPECT_THAT(result.err, HasSubstr("step 3/3"));
  EXPECT_EQ(result.err.find_first_of("\r\033"), std::string::npos) << result.err;

  EXPECT_THAT(entries(folder() / "run"),
              ElementsAre("checkpoints", "config.yaml", "data_check.jsonl", "environment.json", "epochs.jsonl",
                          "events.jsonl", "ledger.json", "metrics.jsonl", "plan.json", "predictions.jsonl",
                          "report.html", "run.lock", "samples.jsonl", "tensorboard"));
  EXPECT_THAT(entries(folder() / "run/checkpoints"), ElementsAre("step-2", "step-3"));
  EXPECT_THAT(entries(folder() / "run/checkpoints/step-3/trainer_state"),
              ElementsAre("checksums.json", "ledger.json", "optimizer.safetensors", "state.json"));
  EXPECT_THAT(entries(folder() / "run/checkpoints/step-3"), testing::IsSupersetOf(entries(checkpoint())));
}

TEST_F(RunTest, RecordsTheRun) {
  const auto file = folder() / "state/past_runs.json";
  setenv("VLMTRAIN_PAST_RUNS", file.c_str(), 1);
  const Result first = train({});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, testing::Not(testing::HasSubstr("on this machine, the last on")));
  const auto environments = json_file("state/past_runs.json")["places"];
  ASSERT_EQ(environments.size(), 1U);
  EXPECT_EQ(environments[0]["runs"], 1);
  EXPECT_TRUE(environments[0]["context_bytes"].is_null());
  const auto plan = json_file("run/plan.json");
  EXPECT_DOUBLE_EQ(environments[0]["peak_ratio"],
                   plan["measured"]["resident_peak_bytes"].get<double>() / plan["memory"]["total_bytes"].get<double>());
  const Result second = train({"output.dir=another"});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, testing::HasSubstr("host memory: one run on this machine, the last on"));
  EXPECT_EQ(json_file("state/past_runs.json")["places"][0]["runs"], 2);
}

TEST_F(RunTest, WritesTheMetricsOfEachStep) {
  train_well({});
  const auto steps = step_lines("run/metrics.jsonl");
  ASSERT_EQ(steps.size(), 4U);
  for (size_t i = 0; i < steps.size(); ++i) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : steps[i].items()) keys.push_back(key);
    EXPECT_THAT(keys, testing::IsSupersetOf({"step", "epoch", "loss", "learning_rate", "grad_norm", "tokens",
                                             "label_tokens", "images", "samples", "step_seconds", "data_wait_seconds",
                                             "tokens_per_second", "micro_batches", "oom_splits", "predicted_peak_bytes",
                                             "allocated_peak_bytes", "reserved_peak_bytes", "host_peak_bytes"}));
    EXPECT_EQ(steps[i]["step"], i + 1);
    EXPECT_EQ(steps[i]["samples"], 4);
    EXPECT_EQ(steps[i]["oom_splits"], 0);
    EXPECT_NEAR(steps[i]["epoch"], static_cast<double>(4 * (i + 1)) / kRecords, 1e-12);
    EXPECT_GT(steps[i]["label_tokens"], 0);
    EXPECT_GT(steps[i]["tokens"], steps[i]["label_tokens"]);
    EXPECT_GT(steps[i]["step_seconds"], 0);
  }
  EXPECT_LT(steps.back()["loss"], steps.front()["loss"]);
}

TEST_F(RunTest, TheLedgerCountsEachSampleOnce) {
  train_well({"training.max_steps=2"});
  const auto ledger = json_file("run/ledger.json");
  EXPECT_EQ(ledger["samples"], kRecords);
  EXPECT_EQ(ledger["used"], 8);
  EXPECT_EQ(ledger["not_reached"], 3);
  EXPECT_EQ(ledger["dropped"], 0);
  EXPECT_EQ(ledger["failed"], 0);
}

TEST_F(RunTest, TheResolvedConfigurationMakesTheSameRun) {
  train_well({"training.learning_rate=0.002"});
  const Result again = run({"--config", "run/config.yaml", "--device", "cpu", "output.dir=again"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_text(folder() / "run/checkpoints/step-4/model.safetensors"),
            read_text(folder() / "again/checkpoints/step-4/model.safetensors"));
}

TEST_F(RunTest, ACheckpointLoadsInEval) {
  train_well({});
  const Result result =
      run({"eval", "--config", "train.yaml", "--checkpoint", "run/checkpoints/step-4", "--device", "cpu", "--json",
           "--max-new-tokens", "2", "--answers", "answers.jsonl", "eval.metrics=[anls,cer]"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(split_lines(result.out).size(), 1U) << result.out;
  const auto evaluation = nlohmann::json::parse(result.out);
  EXPECT_EQ(evaluation["samples"], kRecords);
  EXPECT_LT(evaluation["loss"], step_lines("run/metrics.jsonl").front()["loss"]);
  EXPECT_GT(evaluation["label_tokens"], 0);
  for (const char* key : {"exact_match", "by_task", "skipped"}) EXPECT_TRUE(evaluation.contains(key)) << key;
  EXPECT_EQ(evaluation["closed"]["samples"].get<int64_t>() + evaluation["open"]["samples"].get<int64_t>(), kRecords);
  EXPECT_TRUE(evaluation["closed"].contains("accuracy"));
  EXPECT_TRUE(evaluation["open"].contains("recall"));
  for (const char* metric : {"anls", "cer"}) EXPECT_TRUE(evaluation["metrics"][metric].is_number()) << metric;
  const auto answers = step_lines("answers.jsonl");
  EXPECT_EQ(answers.size(), kRecords);
  for (const auto& answer : answers) {
    EXPECT_THAT(answer["question"].get<std::string>(), AllOf(Not(IsEmpty()), Not(HasSubstr("<image>"))));
    EXPECT_TRUE(answer["metrics"]["anls"].is_number());
    EXPECT_EQ(answer["prediction"], answer["answer"]) << "the earlier name";
  }
  const Result again =
      run({"eval", "--config", "train.yaml", "--checkpoint", "nowhere", "--answers-out", "answers.jsonl"});
  EXPECT_EQ(again.exit_code, 4) << "existing answers are replaced: " << again.err;
}

TEST_F(RunTest, MetricsHaveTheLearningRateOfEachPartThatLearns) {
  train_well({"training.lr_scheduler=constant", "training.warmup_ratio=0", "training.learning_rate=0.004",
              "training.projector_learning_rate=0.003", "model.freeze_vision_tower=true"});
  for (const auto& step : step_lines("run/metrics.jsonl")) {
    EXPECT_EQ(step["learning_rate"], 0.004);
    EXPECT_EQ(step["projector_learning_rate"], 0.003);
    EXPECT_TRUE(step["vision_learning_rate"].is_null()) << "it is frozen";
  }
}

TEST_F(RunTest, QuietPrintsNothing) {
  const Result result = train({"--quiet"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, IsEmpty());
}

TEST_F(RunTest, RestartingAFinishedRunDoesNothing) {
  train_well({});
  const std::string metrics = read_text(folder() / "run/metrics.jsonl");
  const std::string ledger = read_text(folder() / "run/ledger.json");
  const Result again = train({"--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  const auto summary = nlohmann::json::parse(again.out);
  EXPECT_EQ(summary["steps"], 4);
  EXPECT_TRUE(summary["last_loss"].is_null()) << "no step was run: " << summary["last_loss"];
  EXPECT_EQ(read_text(folder() / "run/metrics.jsonl"), metrics);
  EXPECT_EQ(read_text(folder() / "run/ledger.json"), ledger);
}

TEST_F(RunTest, TheOrderOfTheSamplesDoesNotDependOnTheWorkers) {
  for (const char* workers : {"1", "4"}) {
    train_well({std::string("data.num_workers=") + workers, std::string("output.dir=workers") + workers});
  }
  const std::string samples = read_text(folder() / "workers1/samples.jsonl");
  EXPECT_EQ(samples, read_text(folder() / "workers4/samples.jsonl"));
  EXPECT_EQ(split_lines(samples).size(), 4U);
  EXPECT_EQ(read_text(folder() / "workers1/checkpoints/step-4/model.safetensors"),
            read_text(folder() / "workers4/checkpoints/step-4/model.safetensors"));
}

TEST_F(RunTest, AnotherSeedIsAnotherOrder) {
  for (const char* seed : {"1", "2"}) {
    train_well({std::string("training.seed=") + seed, std::string("output.dir=seed") + seed});
  }
  EXPECT_NE(read_text(folder() / "seed1/samples.jsonl"), read_text(folder() / "seed2/samples.jsonl"));
}

/// Returns the largest difference of a tensor between two files, relative to its norm.
double relative_difference(const std::filesystem::path& first_file, const std::filesystem::path& second_file) {
  const io::SafetensorsFile first(first_file);
  const io::SafetensorsFile second(second_file);
  double max_difference = 0;
  for (const auto& name : first.names()) {
    const at::Tensor a = first.tensor(name);
    const at::Tensor b = second.tensor(name);
    double difference = 0;
    double norm = 0;
    for (int64_t i = 0; i < a.numel(); ++i) {
      const double x = a.const_data_ptr<float>()[i];
      difference += (x - b.const_data_ptr<float>()[i]) * (x - b.const_data_ptr<float>()[i]);
      norm += x * x;
    }
    if (norm > 0) max_difference = std::max(max_difference, std::sqrt(difference / norm));
  }
  return max_difference;
}

// A large epsilon makes AdamW's step proportional to the gradient. With the default, an element
// whose gradient is zero but for rounding (the keys' biases) moves by the learning rate in a random
// direction.
TEST_F(RunTest, TheGlobalBatchIsExactWhateverTheMicroBatch) {
  const std::vector<std::string> common_settings{"training.adam_epsilon=0.1", "training.learning_rate=0.05"};
  std::map<int, std::vector<nlohmann::ordered_json>> metrics;
  for (const int size : {1, 2, 4}) {
    auto overrides = common_settings;
    overrides.push_back("training.micro_batch_size=" + std::to_string(size));
    overrides.push_back("output.dir=micro" + std::to_string(size));
    train_well(overrides);
    metrics[size] = step_lines("micro" + std::to_string(size) + "/metrics.jsonl");
    for (const auto& step : metrics[size]) {
      EXPECT_EQ(step["samples"], 4);
      EXPECT_EQ(step["micro_batches"], 4 / size);
    }
  }
  const auto weights = [&](int size) {
    return folder() / ("micro" + std::to_string(size)) / "checkpoints/step-4/model.safetensors";
  };
  EXPECT_GT(relative_difference(checkpoint() / "model.safetensors", weights(4)), 1e-3)
      << "the weights have not changed";
  for (const int size : {1, 2}) {
    EXPECT_EQ(read_text(folder() / "micro4/samples.jsonl"),
              read_text(folder() / ("micro" + std::to_string(size)) / "samples.jsonl"));
    for (size_t i = 0; i < metrics[4].size(); ++i) {
      EXPECT_EQ(metrics[size][i]["label_tokens"], metrics[4][i]["label_tokens"]);
      EXPECT_NEAR(metrics[size][i]["loss"], metrics[4][i]["loss"], 1e-5);
    }
    EXPECT_LT(relative_difference(weights(4), weights(size)), 1e-6) << "micro-batch of " << size;
  }
}

TEST_F(RunTest, InitWritesACheckpointThatAnswersAndTrains) {
  const Result created = run({"init", "--preset", "smolvlm-tiny", "--out", "tiny", "--seed", "3", "--json"});
  ASSERT_EQ(created.exit_code, 0) << created.err;
  EXPECT_EQ(nlohmann::json::parse(created.out)["checkpoint"], "tiny");

  const Result answer = run({"generate", "--checkpoint", "tiny", "--image", "images/small.png", "--prompt",
                             "What is this?", "--max-new-tokens", "3", "--device", "cpu", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  ASSERT_EQ(split_lines(answer.out).size(), 1U) << answer.out;
  const auto json = nlohmann::json::parse(answer.out);
  EXPECT_TRUE(json["text"].is_string());
  EXPECT_LE(json["token_ids"].size(), 3U);
  EXPECT_GT(json["prompt_tokens"], 3);
  EXPECT_GE(json["tokens_per_second"], 0);

  const auto train_with_seed = [this](const char* seed) {
    const Result result =
        run({"generate", "--checkpoint", "tiny", "--prompt", "What is this?", "--max-new-tokens", "12", "--temperature",
             "1", "--top-p", "0.95", "--top-k", "200", "--seed", seed, "--device", "cpu", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out)["token_ids"];
  };
  EXPECT_EQ(train_with_seed("1"), train_with_seed("1"));
  EXPECT_NE(train_with_seed("1"), train_with_seed("2"));

  train_well({"model.path=tiny", "training.max_steps=1"});

  // Equal seeds give equal weights, different seeds different ones.
  for (const char* seed : {"3", "4"}) {
    ASSERT_EQ(run({"init", "--preset", "smolvlm-tiny", "--out", std::string("tiny") + seed, "--seed", seed}).exit_code,
              0);
  }
  const std::string weights = read_text(folder() / "tiny/model.safetensors");
  EXPECT_EQ(weights, read_text(folder() / "tiny3/model.safetensors"));
  EXPECT_NE(weights, read_text(folder() / "tiny4/model.safetensors"));

  ASSERT_EQ(run({"init", "--preset", "smolvlm-tiny", "--out", "half", "--dtype", "bf16"}).exit_code, 0);
  EXPECT_LT(std::filesystem::file_size(folder() / "half/model.safetensors"), weights.size() * 6 / 10);
  const Result mixed =
      run({"init", "--preset", "prs-med-tiny", "--text-model", "tiny", "--out", "x", "--dtype", "bf16"});
  EXPECT_EQ(mixed.exit_code, 2);
  EXPECT_THAT(mixed.err, HasSubstr("--dtype bf16: weights of other models keep their data type"));
}

TEST_F(RunTest, InitRejectsANonEmptyFolder) {
  std::filesystem::create_directory(folder() / "mine");
  write_text(folder() / "mine/notes.txt", "keep me");
  const Result refused = run({"init", "--preset", "smolvlm-tiny", "--out", "mine"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--out mine: already exists"));
  EXPECT_THAT(entries(folder() / "mine"), UnorderedElementsAre("notes.txt"));
}

}  // namespace

}  // namespace vlmtrain::e2e
