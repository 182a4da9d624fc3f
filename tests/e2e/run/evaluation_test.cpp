#include <map>
#include <random>
#include <set>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Runs of 30 steps that evaluate four records after every second step.
class EvaluationTest : public CommandTest {
 protected:
  static constexpr size_t kSteps = 30;

  void SetUp() override {
    CommandTest::SetUp();
    auto few = records();
    few.erase(few.begin() + 4, few.end());
    for (size_t i = 0; i < few.size(); ++i) few[i]["task"] = i % 2 == 0 ? "even" : "odd";
    write_text(folder() / "eval.json", few.dump());
  }

  static std::vector<std::string> settings(const std::string& dir) {
    return {"output.dir=" + dir,
            "output.save_steps=5",
            "output.save_total_limit=1",
            "output.sample_predictions=0",
            "training.max_steps=" + std::to_string(kSteps),
            "data.eval=eval.json",
            "training.eval_steps=2",
            "training.eval_max_new_tokens=3",
            "training.learning_rate=3.0e-2"};
  }

  std::filesystem::path checkpoints(const std::string& dir) const { return folder() / dir / "checkpoints"; }

  /// Returns 0 without a checkpoint.
  int newest(const std::string& dir) const {
    int newest = 0;
    if (!std::filesystem::exists(checkpoints(dir))) return newest;
    for (const auto& name : entries(checkpoints(dir))) {
      if (name.starts_with("step-")) newest = std::max(newest, std::stoi(name.substr(5)));
    }
    return newest;
  }

  nlohmann::json evaluation_of_state(const std::string& dir, int step) const {
    const auto file = checkpoints(dir) / ("step-" + std::to_string(step)) / "trainer_state/state.json";
    return nlohmann::json::parse(read_text(file))["evaluation"];
  }

  /// After a kill the best checkpoint of the newest state exists, and the link leads to a whole
  /// one.
  void expect_best_is_whole(const std::string& dir) const {
    const int step = newest(dir);
    if (step == 0) return;
    const auto best = evaluation_of_state(dir, step).value("best_step", 0);
    if (best > 0) {
      EXPECT_TRUE(std::filesystem::exists(checkpoints(dir) / ("step-" + std::to_string(best)) / "model.safetensors"));
    }
    const auto link = checkpoints(dir) / "best";
    if (!std::filesystem::is_symlink(link)) return;
    EXPECT_FALSE(std::filesystem::read_symlink(link).is_absolute());
    EXPECT_TRUE(std::filesystem::exists(link / "model.safetensors"));
    EXPECT_TRUE(std::filesystem::exists(link / "trainer_state/state.json"));
  }

  /// Returns the evaluations of a run, without durations.
  std::map<int, nlohmann::ordered_json> evaluations(const std::string& dir) const {
    std::map<int, nlohmann::ordered_json> evaluations;
    for (auto& line : step_lines(dir + "/metrics.jsonl")) {
      if (!line.contains("evaluation")) continue;
      line["evaluation"].erase("seconds");
      evaluations[line["step"]] = line["evaluation"];
    }
    return evaluations;
  }

  /// Expects the same evaluations and the same best steps.
  void expect_same(const std::string& uninterrupted, const std::string& resumed) const {
    EXPECT_EQ(evaluations(uninterrupted), evaluations(resumed));
    EXPECT_EQ(evaluations(uninterrupted).size(), kSteps / 2 + 5) << "every second step, and the ends of odd epochs";
    EXPECT_EQ(entries(checkpoints(uninterrupted)), entries(checkpoints(resumed)));
    EXPECT_EQ(evaluation_of_state(uninterrupted, kSteps), evaluation_of_state(resumed, kSteps));
    for (const char* file : {"best/model.safetensors", "step-30/model.safetensors"}) {
      EXPECT_TRUE(read_text(checkpoints(uninterrupted) / file) == read_text(checkpoints(resumed) / file)) << file;
    }
  }
};

TEST_F(EvaluationTest, BestCheckpointSurvivesKills) {
  train_well(settings("whole"));
  const auto arguments = train_arguments(settings("pieces"));
  std::mt19937 random(20261122);
  std::set<int> killed_after;
  for (int kill = 0; kill < 20; ++kill) {
    Process process(folder(), arguments);
    const int goal = newest("pieces") + (kill % 3 == 0 ? 0 : 1);
    wait_until(process, [&] { return newest("pieces") >= goal; });
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 60));
    process.send(SIGKILL);
    process.wait();
    killed_after.insert(newest("pieces"));
    expect_best_is_whole("pieces");
  }
  EXPECT_GT(killed_after.size(), 3U);
  const Result last = run(arguments);
  ASSERT_EQ(last.exit_code, 0) << last.err;
  expect_same("whole", "pieces");
}

TEST_F(EvaluationTest, RunsAnInterruptedEvaluationAfterAStop) {
  auto many = nlohmann::json::array();
  for (const auto& record : records()) many.push_back(record);
  while (many.size() < 100) many.push_back(many[many.size() % kRecords]);
  for (size_t i = 0; i < many.size(); ++i) many[i]["id"] = "sample-" + std::to_string(i);
  write_text(folder() / "many.json", many.dump());
  const auto get_eval_settings = [](const std::string& dir) {
    return std::vector<std::string>{"output.dir=" + dir,          "data.eval=many.json",
                                    "training.max_steps=3",       "training.eval_steps=2",
                                    "training.eval_batch_size=1", "output.sample_predictions=0"};
  };
  train_well(get_eval_settings("whole"));
  const auto arguments = train_arguments(get_eval_settings("pieces"));
  Process process(folder(), arguments);
  // The second step's line is written after its evaluation.
  wait_until(process, [&] { return split_lines(read_text(folder() / "pieces/metrics.jsonl")).size() == 1; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().exit_code, 75);
  const int completed_steps = newest("pieces");
  EXPECT_EQ(completed_steps, 2);
  EXPECT_EQ(evaluation_of_state("pieces", completed_steps)["is_due"], true);
  EXPECT_THAT(evaluations("pieces"), IsEmpty());
  const Result last = run(arguments);
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(evaluations("whole"), evaluations("pieces"));
  EXPECT_EQ(evaluations("pieces").size(), 2U);
}

TEST_F(EvaluationTest, EvalUsesTheBestCheckpointOfARun) {
  auto arguments = train_arguments(settings("run"));
  arguments.emplace_back("--json");
  const Result train_result = run(arguments);
  ASSERT_EQ(train_result.exit_code, 0) << train_result.err;
  const auto summary = nlohmann::json::parse(train_result.out);
  EXPECT_EQ(summary["early_stopped"], false);
  EXPECT_EQ(summary["best_metric"], "loss");
  const int best = summary["best_step"];
  EXPECT_EQ(summary["best_checkpoint"], "run/checkpoints/step-" + std::to_string(best));
  const Result eval_result = run({"eval", "--config", "train.yaml", "--checkpoint", "run", "--device", "cpu", "--json",
                                  "--max-new-tokens", "3", "data.eval=eval.json"});
  ASSERT_EQ(eval_result.exit_code, 0) << eval_result.err;
  EXPECT_THAT(eval_result.err, HasSubstr("using its best checkpoint, run/checkpoints/step-" + std::to_string(best)));
  const auto json = nlohmann::json::parse(eval_result.out);
  const auto in_run = evaluations("run").at(best);
  EXPECT_NEAR(json["loss"].get<double>(), summary["best_value"].get<double>(), 1e-6);
  EXPECT_NEAR(json["loss"].get<double>(), in_run["loss"].get<double>(), 1e-6);
  for (const char* task : {"even", "odd"}) {
    EXPECT_NEAR(json["by_task"][task]["loss"].get<double>(), in_run["tasks"][task]["loss"].get<double>(), 1e-6);
    EXPECT_EQ(json["by_task"][task]["label_tokens"], in_run["tasks"][task]["label_tokens"]);
  }
  EXPECT_EQ(json["oom_splits"], 0);
  EXPECT_GT(json["seconds"], 0);
  EXPECT_GT(json["batch_size"], 0);
}

TEST_F(EvaluationTest, PlansTheEvaluationBatchSize) {
  const auto eval = [this](const std::vector<std::string>& more) {
    std::vector<std::string> command_line{"eval",     "--config", "train.yaml", "--checkpoint",     checkpoint(),
                                          "--device", "cpu",      "--json",     "--max-new-tokens", "2"};
    command_line.insert(command_line.end(), more.begin(), more.end());
    return run(command_line);
  };
  const Result eval_result = eval({});
  ASSERT_EQ(eval_result.exit_code, 0) << eval_result.err;
  EXPECT_EQ(nlohmann::json::parse(eval_result.out)["batch_size"], 16);
  const Result fixed = eval({"--batch-size", "3"});
  ASSERT_EQ(fixed.exit_code, 0) << fixed.err;
  EXPECT_EQ(nlohmann::json::parse(fixed.out)["batch_size"], 3);
  EXPECT_NEAR(nlohmann::json::parse(fixed.out)["loss"].get<double>(),
              nlohmann::json::parse(eval_result.out)["loss"].get<double>(), 1e-5);
  const Result tight = eval({"memory.limit_gb=0.1"});
  ASSERT_EQ(tight.exit_code, 0) << tight.err;
  EXPECT_EQ(nlohmann::json::parse(tight.out)["batch_size"], 1);
  for (const char* wrong : {"0", "-1", "many", "1e3"}) {
    const Result refused = eval({"--batch-size", wrong});
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr("--batch-size"));
  }
}

TEST_F(EvaluationTest, RejectsUnusableDataBeforeLoading) {
  const auto refusal = [this](int exit_code, const std::vector<std::string>& overrides) {
    const Result result = train(overrides);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("trained, in")));
    return result.err;
  };
  EXPECT_THAT(refusal(2, {"training.eval_steps=5", "data.eval="}),
              AllOf(HasSubstr("training.eval_steps"), HasSubstr("data.eval")));
  EXPECT_THAT(refusal(2, {"training.early_stopping_patience=3"}), HasSubstr("training.eval_steps"));
  EXPECT_THAT(refusal(2, {"training.eval_steps=-1"}), HasSubstr("training.eval_steps"));
  EXPECT_THAT(refusal(2, {"training.best_metric=exact_match", "training.eval_answers=false"}),
              HasSubstr("training.eval_answers"));
  EXPECT_THAT(refusal(4, {"training.eval_steps=5", "data.eval=nowhere.json"}), HasSubstr("nowhere.json"));
  auto bad = records();
  for (auto& record : bad) record["image"] = "nowhere.png";
  write_text(folder() / "bad.json", bad.dump());
  EXPECT_THAT(refusal(4, {"training.eval_steps=5", "data.eval=bad.json", "data.on_bad_sample=skip"}),
              HasSubstr("none of the 11 samples"));
  EXPECT_THAT(refusal(4, {"training.eval_steps=5", "data.eval=bad.json"}), HasSubstr("bad.json"));
}

/// Runs on virtual GPUs.
class PlannedEvaluationTest : public EvaluationTest {
 protected:
  nlohmann::ordered_json train_on_gpu(const std::string& gpu, const std::vector<std::string>& overrides) const {
    std::vector<std::string> arguments{"--config", "train.yaml", "--device", "virtual:" + gpu};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json_file("run/virtual-" + gpu + "/plan.json");
  }
};

TEST_F(PlannedEvaluationTest, StaysWithinThePlanAndResynchronizes) {
  const auto plan = train_on_gpu(
      "rtx4090", {"training.precision=bf16", "training.max_steps=40", "training.eval_steps=4",
                  "training.global_batch_size=11", "output.save_steps=0", "training.early_stopping_patience=1"});
  const auto& measured = plan["measured"];
  EXPECT_EQ(measured["steps"], 40) << "without values no step is better";
  EXPECT_LE(plan["evaluation"]["reserved_peak_bytes"], plan["memory"]["reserved_peak_bytes"]);
  EXPECT_LE(measured["reserved_peak_bytes"], plan["memory"]["reserved_peak_bytes"]);
  EXPECT_EQ(measured["allocation_retries"], 0);
  EXPECT_EQ(measured["look_ahead"]["worst_error"], 0);
  EXPECT_EQ(measured["look_ahead"]["forecast_steps"], 40);
  EXPECT_EQ(measured["look_ahead"]["unfit_steps"], 0);
  EXPECT_EQ(measured["look_ahead"]["late_steps"], 0);
  int num_evaluated = 0;
  for (const auto& line : step_lines("run/virtual-rtx4090/metrics.jsonl")) {
    if (!line.contains("evaluation")) continue;
    ++num_evaluated;
    EXPECT_TRUE(line["evaluation"]["loss"].is_null()) << "a virtual GPU computes nothing";
    EXPECT_EQ(line["evaluation"]["samples"], kRecords);
    EXPECT_EQ(line["evaluation"]["batch_size"], plan["evaluation"]["batch_size"]);
    EXPECT_EQ(line["evaluation"]["oom_splits"], 0);
  }
  EXPECT_GE(num_evaluated, 10);
}

/// Evaluations in batches of all samples, with long answers, take more than training on single samples.
TEST_F(PlannedEvaluationTest, PlanCommandCountsThem) {
  const std::vector<std::string> overrides{"training.precision=bf16",     "training.micro_batch_size=1",
                                           "training.eval_steps=2",       "training.eval_batch_size=11",
                                           "output.sample_predictions=0", "training.eval_max_new_tokens=6000"};
  const auto run_plan = train_on_gpu("rtx4090", overrides);
  const auto plan = [&](const std::vector<std::string>& changes) {
    std::vector<std::string> arguments{"plan", "--config", "train.yaml", "--gpu", "rtx4090", "--json"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    arguments.insert(arguments.end(), changes.begin(), changes.end());
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::ordered_json::parse(result.out);
  };
  const auto with_evaluations = plan({});
  EXPECT_EQ(with_evaluations["evaluation"], run_plan["evaluation"]);
  const int64_t evaluation_bytes = with_evaluations["evaluation"]["reserved_peak_bytes"];
  EXPECT_GT(evaluation_bytes, with_evaluations["memory"]["reserved_peak_bytes"]);
  EXPECT_EQ(with_evaluations["memory"]["total_bytes"],
            evaluation_bytes + with_evaluations["memory"]["context_bytes"].get<int64_t>());
  const auto without = plan({"training.eval_steps=0"});
  EXPECT_FALSE(without.contains("evaluation"));
  EXPECT_EQ(without["memory"]["total_bytes"].get<int64_t>() + evaluation_bytes -
                without["memory"]["reserved_peak_bytes"].get<int64_t>(),
            with_evaluations["memory"]["total_bytes"]);
  // Samples of flags are also those of evaluations.
  EXPECT_EQ(plan({"--images", "1", "--image-size", "64"})["evaluation"]["batch_size"], 11);
}

/// `vlmtrain eval` takes the model from --checkpoint.
TEST_F(EvaluationTest, TheCommandNeedsNoModelPath) {
  write_text(folder() / "eval.yaml", "data:\n  eval: train.json\n  image_root: images\n");
  const Result result =
      run({"eval", "--config", "eval.yaml", "--checkpoint", checkpoint().string(), "--device", "cpu", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["samples"], kRecords);
}

}  // namespace

}  // namespace vlmtrain::e2e
