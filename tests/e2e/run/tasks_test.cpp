#include <cmath>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;

/// Runs over records of two tasks.
class TasksTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    auto with_tasks = records();
    for (size_t i = 0; i < with_tasks.size(); ++i) with_tasks[i]["task"] = i % 3 == 0 ? "caption" : "question";
    write_records(with_tasks);
  }

  std::vector<std::string> with_output(const std::string& dir, std::vector<std::string> settings) const {
    settings.push_back("output.dir=" + dir);
    return settings;
  }
};

TEST_F(TasksTest, ReportsLossAndAccuracyByTask) {
  train_well({});
  for (const auto& step : step_lines("run/metrics.jsonl")) {
    double loss = 0;
    int64_t samples = 0;
    ASSERT_FALSE(step["tasks"].empty());
    for (const auto& [name, task] : step["tasks"].items()) {
      loss += task["loss"].get<double>() * task["label_tokens"].get<double>();
      samples += task["samples"].get<int64_t>();
      EXPECT_EQ(task["weight"], 1);
      EXPECT_GE(task["accuracy"], 0);
      EXPECT_LE(task["accuracy"], 1);
    }
    EXPECT_NEAR(loss / step["label_tokens"].get<double>(), step["loss"].get<double>(), 1e-5);
    EXPECT_EQ(samples, 4);
  }
}

/// The weights change the loss; measuring tasks changes nothing.
TEST_F(TasksTest, ReportsFixedWeights) {
  train_well(with_output("fixed", {"training.task_weighting=fixed", "training.task_weights=[caption=2, question=1]"}));
  // 4 captions and 7 questions: both are scaled by 11 / 15.
  for (const auto& step : step_lines("fixed/metrics.jsonl")) {
    double loss = 0;
    for (const auto& [name, task] : step["tasks"].items()) {
      const double weight = task["weight"];
      EXPECT_NEAR(weight, (name == "caption" ? 22.0 : 11.0) / 15.0, 1e-9);
      loss += weight * task["loss"].get<double>() * task["label_tokens"].get<double>();
    }
    EXPECT_NEAR(loss / step["label_tokens"].get<double>(), step["loss"].get<double>(), 1e-5);
  }
  train_well(with_output("plain", {}));
  auto without = records();
  write_records(without);
  train_well(with_output("untold", {}));
  EXPECT_EQ(read_text(folder() / "plain/checkpoints/step-4/model.safetensors"),
            read_text(folder() / "untold/checkpoints/step-4/model.safetensors"));
  EXPECT_NE(read_text(folder() / "plain/checkpoints/step-4/model.safetensors"),
            read_text(folder() / "fixed/checkpoints/step-4/model.safetensors"));
}

TEST_F(TasksTest, GradNormAndPcGradResumeBitForBit) {
  const std::vector<std::string> settings{"training.task_weighting=gradnorm", "training.gradient_conflicts=pcgrad",
                                          "training.gradnorm_learning_rate=0.5", "training.max_steps=12",
                                          "output.save_steps=5"};
  train_well(with_output("whole", settings));
  const auto steps = step_lines("whole/metrics.jsonl");
  EXPECT_NE(steps[3]["tasks"].dump(), steps[0]["tasks"].dump());
  double last = 1;
  for (const auto& [name, task] : steps.back()["tasks"].items()) last = task["weight"];
  EXPECT_GT(std::abs(last - 1), 1e-4) << "GradNorm changed nothing";

  train_well(with_output("pieces", settings));
  std::filesystem::remove_all(folder() / "pieces/checkpoints/step-12");
  const Result resumed = train(with_output("pieces", settings));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("resuming after step 10"));
  for (const char* file : {"model.safetensors", "trainer_state/optimizer.safetensors"}) {
    EXPECT_EQ(read_text(folder() / "whole/checkpoints/step-12" / file),
              read_text(folder() / "pieces/checkpoints/step-12" / file))
        << file;
  }
  // Two runs, each with the memory that was free at its start.
  const auto state = [this](const std::string& run) {
    auto json = json_file(run + "/checkpoints/step-12/trainer_state/state.json");
    json["host_memory"].erase("tensor_limit_bytes");
    return json;
  };
  EXPECT_EQ(state("whole"), state("pieces"));
  const auto repeated = step_lines("pieces/metrics.jsonl");
  ASSERT_EQ(repeated.size(), steps.size());
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(repeated[i]["tasks"].dump(), steps[i]["tasks"].dump());
}

TEST_F(TasksTest, BatchTokensScaleTheLearningRates) {
  const Result result = train({"training.global_batch_tokens=200", "training.batch_scaling=sqrt",
                               "training.lr_scheduler=constant", "training.warmup_ratio=0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("steps of about 200 tokens, at most 4 samples"));
  EXPECT_THAT(result.err, HasSubstr("training.batch_scaling=sqrt"));
  for (const auto& step : step_lines("run/metrics.jsonl")) {
    EXPECT_LE(step["samples"], 4);
    EXPECT_NEAR(step["learning_rate"].get<double>(), 1e-3 * std::sqrt(step["tokens"].get<double>() / 200), 1e-12);
  }
}

TEST_F(TasksTest, ReferenceBatchSizeScalesTheLearningRates) {
  const Result result = train({"training.reference_batch_size=1", "training.batch_scaling=linear",
                               "training.lr_scheduler=constant", "training.warmup_ratio=0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("multiplied by 4 for 4"));
  for (const auto& step : step_lines("run/metrics.jsonl")) EXPECT_DOUBLE_EQ(step["learning_rate"], 4e-3);
}

TEST_F(TasksTest, RejectsWrongTasks) {
  const Result wrong = train({"training.task_weighting=fixed", "training.task_weights=[captoin=2, question=1]"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean caption?"));
  write_records(records());
  const Result single_task = train({"training.gradient_conflicts=pcgrad"});
  EXPECT_EQ(single_task.exit_code, 2);
  EXPECT_THAT(single_task.err, HasSubstr("only one task"));
}

/// The global batch is the data set, so that every step has its worst samples.
TEST_F(TasksTest, PcGradStaysWithinThePlan) {
  const auto train_on_test_gpu = [this](const std::string& dir, std::vector<std::string> settings) {
    std::vector<std::string> arguments{"--config", "train.yaml", "--device", "virtual:rtx4090"};
    settings.insert(settings.end(), {"training.precision=bf16", "training.global_batch_size=11",
                                     "memory.recompute=none", "memory.look_ahead=false", "output.dir=" + dir});
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto plan = json_file(dir + "/virtual-rtx4090/plan.json");
    EXPECT_LE(plan["measured"]["reserved_peak_bytes"], plan["memory"]["reserved_peak_bytes"]);
    EXPECT_LE(plan["measured"]["allocated_peak_bytes"], plan["memory"]["allocated_peak_bytes"]);
    return plan;
  };
  const std::vector<std::string> gradient_settings{"training.gradient_conflicts=pcgrad",
                                                   "training.task_weighting=gradnorm"};
  const auto add_settings = [](std::vector<std::string> settings, const std::string& another) {
    settings.push_back(another);
    return settings;
  };
  const auto plan = train_on_test_gpu("apart", add_settings(gradient_settings, "training.micro_batch_size=1"));
  const auto plain = train_on_test_gpu("together", {"training.micro_batch_size=1"});
  EXPECT_GT(plan["memory"]["gradients_bytes"].get<double>(), 1.9 * plain["memory"]["gradients_bytes"].get<double>());
  EXPECT_GE(plan["measured"]["reserved_peak_bytes"].get<double>(),
            0.9 * plan["memory"]["reserved_peak_bytes"].get<double>());
  EXPECT_GE(plan["measured"]["allocated_peak_bytes"].get<double>(),
            0.9 * plan["memory"]["allocated_peak_bytes"].get<double>());

  // 4 captions and 7 questions, never in one micro-batch.
  train_on_test_gpu("cut", add_settings(gradient_settings, "training.micro_batch_size=11"));
  for (const auto& step : step_lines("cut/virtual-rtx4090/metrics.jsonl")) {
    EXPECT_EQ(step["micro_batch_sizes"], nlohmann::ordered_json::parse("[4, 7]"));
  }
}

}  // namespace

}  // namespace vlmtrain::e2e
