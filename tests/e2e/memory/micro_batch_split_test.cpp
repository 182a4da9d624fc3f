#include <algorithm>
#include <set>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;

/// Runs whose steps are split by memory: one in eight samples has many images, the others one or
/// none.
class MicroBatchSplitTest : public CommandTest {
 protected:
  static constexpr int kSamples = 48;

  void SetUp() override {
    CommandTest::SetUp();
    auto all = records();
    const auto with_image = std::ranges::find_if(
        all, [](const nlohmann::json& record) { return record.contains("image") && record["image"].is_string(); });
    ASSERT_NE(with_image, all.end());
    nlohmann::json large = *with_image;
    const std::string image = large["image"];
    large["image"] = nlohmann::json::array();
    std::string image_marks;
    for (int i = 0; i < 12; ++i) {
      large["image"].push_back(image);
      image_marks += "<image>\n";
    }
    auto& text = large["conversations"][0]["value"];
    const std::string question = text;
    const auto mark_position = question.find("<image>");
    text = image_marks + (mark_position == std::string::npos ? question : question.substr(mark_position + 7));
    auto mixed = nlohmann::json::array();
    for (size_t i = 0; i < kSamples; ++i) {
      mixed.push_back(i % 8 == 3 ? large : all[i % all.size()]);
      mixed.back()["id"] = "sample-" + std::to_string(i);
    }
    write_records(mixed);
  }

  /// Returns a memory.limit_gb that leaves a run on the CPU this much for tensors, according to a
  /// plan.
  static std::string limit_that_leaves(const nlohmann::ordered_json& plan, double bytes) {
    const auto& memory = plan["memory"];
    const double other_bytes = memory["total_bytes"].get<double>() - memory["allocated_peak_bytes"].get<double>() -
                               memory["fragmentation_bytes"].get<double>();
    constexpr double kWithoutMargin = 0.95;
    return "memory.limit_gb=" + std::to_string((other_bytes + bytes) / kWithoutMargin / 1e9);
  }

  static double tensor_bytes(const nlohmann::ordered_json& plan) {
    return plan["memory"]["allocated_peak_bytes"].get<double>() + plan["memory"]["fragmentation_bytes"].get<double>();
  }

  /// Returns the limit under which a step of the worst samples fits one by one, and other steps
  /// need fewer passes.
  std::string tight_limit() {
    train_well(
        {"training.micro_batch_size=1", "training.global_batch_size=8", "training.max_steps=1", "output.dir=single"});
    return limit_that_leaves(json_file("single/plan.json"), 1.02 * tensor_bytes(json_file("single/plan.json")));
  }

  static std::set<int64_t> list_micro_batch_sizes(const std::vector<nlohmann::ordered_json>& steps) {
    std::set<int64_t> sizes;
    for (const auto& step : steps) {
      for (const auto& size : step["micro_batch_sizes"]) sizes.insert(size.get<int64_t>());
    }
    return sizes;
  }
};

TEST_F(MicroBatchSplitTest, CpuSplitsKeepTheLosses) {
  const std::vector<std::string> common_settings{"training.global_batch_size=8", "training.max_steps=6",
                                                 "memory.recompute=none"};
  const auto add_settings = [&](std::vector<std::string> more) {
    more.insert(more.end(), common_settings.begin(), common_settings.end());
    return more;
  };
  const std::string limit = tight_limit();
  const Result result = train(add_settings({limit, "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("each split by memory"));
  const auto plan = json_file("run/plan.json");
  ASSERT_TRUE(plan["split"].is_object()) << plan.dump(1);
  EXPECT_EQ(plan["micro_batch_size"].get<int>() * plan["gradient_accumulation_steps"].get<int>(), 8);
  EXPECT_EQ(plan["measured"]["refused_allocations"], 0);
  const auto steps = step_lines("run/metrics.jsonl");
  ASSERT_EQ(steps.size(), 6U);
  EXPECT_GT(list_micro_batch_sizes(steps).size(), 1U) << "micro-batches of unequal sizes";
  for (const auto& step : steps) {
    EXPECT_EQ(step["samples"], 8);
    EXPECT_LT(step["micro_batches"], 8);
    EXPECT_EQ(step["oom_splits"], 0);
  }

  train_well(add_settings({"output.dir=whole", "training.micro_batch_size=8"}));
  const auto uninterrupted = step_lines("whole/metrics.jsonl");
  ASSERT_EQ(uninterrupted.size(), steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_NEAR(steps[i]["loss"].get<double>(), uninterrupted[i]["loss"].get<double>(), 1e-4);
    EXPECT_NEAR(steps[i]["grad_norm"].get<double>(), uninterrupted[i]["grad_norm"].get<double>(), 1e-3);
  }
}

TEST_F(MicroBatchSplitTest, ResumedRunKeepsItsSplits) {
  const std::string limit = tight_limit();
  const std::vector<std::string> common_settings{"training.global_batch_size=8", "training.max_steps=4",
                                                 "output.save_steps=2"};
  const auto add_settings = [&](std::vector<std::string> more) {
    more.insert(more.end(), common_settings.begin(), common_settings.end());
    return more;
  };
  train_well(add_settings({limit}));
  const auto uninterrupted = step_lines("run/metrics.jsonl");
  std::filesystem::remove_all(folder() / "run/checkpoints/step-4");
  const auto state = json_file("run/checkpoints/step-2/trainer_state/state.json");
  ASSERT_TRUE(state["host_memory"]["costs"].is_object()) << state;
  const Result repeated = train(add_settings({}));
  ASSERT_EQ(repeated.exit_code, 0) << repeated.err;
  EXPECT_EQ(json_file("run/checkpoints/step-4/trainer_state/state.json")["host_memory"], state["host_memory"]);
  const auto steps = step_lines("run/metrics.jsonl");
  ASSERT_EQ(steps.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(steps[i]["micro_batch_sizes"], uninterrupted[i]["micro_batch_sizes"]);
    EXPECT_EQ(steps[i]["loss"].dump(), uninterrupted[i]["loss"].dump());
  }
}

TEST_F(MicroBatchSplitTest, LookAheadForecastsEachStepExactly) {
  const std::vector<std::string> common_settings{
      "--config", "train.yaml", "--device", "virtual:rtx4090", "training.global_batch_size=8", "training.max_steps=12"};
  const auto add_settings = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common_settings.begin(), common_settings.end());
    return more;
  };
  const Result single = run(add_settings({"training.micro_batch_size=1", "memory.recompute=none"}));
  ASSERT_EQ(single.exit_code, 0) << single.err;
  const auto alone = json_file(std::string(kVirtualRun) + "plan.json");
  const double needed = alone["memory"]["total_bytes"].get<double>() + 12e6;
  const Result result =
      run(add_settings({"memory.limit_gb=" + std::to_string(needed / 0.95 / 1e9), "memory.recompute=none"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto plan = json_file(std::string(kVirtualRun) + "plan.json");
  ASSERT_TRUE(plan["split"].is_object()) << plan.dump(1);
  const auto steps = step_lines(std::string(kVirtualRun) + "metrics.jsonl");
  ASSERT_EQ(steps.size(), 12U);
  EXPECT_GT(list_micro_batch_sizes(steps).size(), 1U);
  for (const auto& step : steps) {
    EXPECT_EQ(step["predicted_peak_bytes"], step["reserved_peak_bytes"]);
    EXPECT_LE(step["reserved_peak_bytes"], plan["limit_bytes"]);
    EXPECT_EQ(step["oom_splits"], 0);
  }
  EXPECT_LT(plan["split"]["micro_batches_per_step"], 8);
}

TEST_F(MicroBatchSplitTest, SplitsPacksByTheirSamples) {
  const std::vector<std::string> packed{"data.packing=true", "data.pack_max_images=24", "data.pack_max_tokens=100000",
                                        "training.global_batch_size=2", "training.max_steps=3"};
  const Result result = train(packed);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto plan = json_file("run/plan.json");
  EXPECT_EQ(plan["global_batch_size"], 2);
  EXPECT_GT(plan["samples_per_pack"], 4);
  const auto steps = step_lines("run/metrics.jsonl");
  ASSERT_EQ(steps.size(), 3U);
  int64_t max_samples = 0;
  for (const auto& step : steps) {
    const auto samples = step["samples"].get<int64_t>();
    max_samples = std::max(max_samples, samples);
    EXPECT_EQ(step["micro_batches"].get<int64_t>(), (samples + 7) / 8) << "of up to eight samples on the CPU";
  }
  EXPECT_GT(max_samples, 8);
  auto on_gpu = packed;
  on_gpu.insert(on_gpu.begin(), {"--config", "train.yaml", "--device", "virtual:rtx4090"});
  const Result virtual_run = run(on_gpu);
  ASSERT_EQ(virtual_run.exit_code, 0) << virtual_run.err;
  for (const auto& step : step_lines(std::string(kVirtualRun) + "metrics.jsonl")) {
    EXPECT_EQ(step["predicted_peak_bytes"], step["reserved_peak_bytes"]);
    EXPECT_EQ(step["micro_batches"], 1) << "the GPU holds a whole step";
  }
}

}  // namespace

}  // namespace vlmtrain::e2e
