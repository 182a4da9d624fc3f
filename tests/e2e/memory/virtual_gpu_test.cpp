#include <algorithm>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// A whole run on a virtual GPU: everything but arithmetic.
class VirtualGpuTest : public CommandTest {
 protected:
  Result train_on_gpu(const std::string& gpu, const std::vector<std::string>& overrides) const {
    std::vector<std::string> arguments{"--config", "train.yaml", "--device", "virtual:" + gpu};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    return run(arguments);
  }
  Result train_on_test_gpu(const std::vector<std::string>& overrides) const {
    return train_on_gpu("rtx4090", overrides);
  }

  std::vector<std::pair<int64_t, int64_t>> peaks() const {
    std::vector<std::pair<int64_t, int64_t>> peaks;
    for (const auto& step : step_lines(std::string(kVirtualRun) + "metrics.jsonl")) {
      peaks.emplace_back(step["allocated_peak_bytes"], step["reserved_peak_bytes"]);
    }
    return peaks;
  }
};

TEST_F(VirtualGpuTest, TrainsAndReportsDeviceMemory) {
  const Result result = train_on_test_gpu({"training.precision=bf16"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("in bf16 on cuda:0"), HasSubstr("loss -"), Not(HasSubstr("nan"))));
  EXPECT_THAT(read_text(folder() / kVirtualRun / "events.jsonl"), Not(HasSubstr("nan")));
  EXPECT_THAT(entries(folder() / "run"), ElementsAre("virtual-rtx4090")) << "separate from the results of real runs";
  EXPECT_THAT(
      entries(folder() / kVirtualRun),
      ElementsAre("config.yaml", "data_check.jsonl", "environment.json", "epochs.jsonl", "events.jsonl", "ledger.json",
                  "metrics.jsonl", "plan.json", "predictions.jsonl", "report.html", "run.lock", "samples.jsonl"))
      << "no checkpoint without computed values";

  const auto plan = json_file(std::string(kVirtualRun) + "plan.json");
  const auto steps = step_lines(std::string(kVirtualRun) + "metrics.jsonl");
  ASSERT_EQ(steps.size(), 4U);
  for (const auto& step : steps) {
    EXPECT_TRUE(step["loss"].is_null());
    EXPECT_TRUE(step["grad_norm"].is_null());
    EXPECT_EQ(step["samples"], 4);
    EXPECT_GT(step["allocated_peak_bytes"], 0);
    EXPECT_GE(step["reserved_peak_bytes"], step["allocated_peak_bytes"]);
    EXPECT_EQ(step["predicted_peak_bytes"], step["reserved_peak_bytes"]) << "as the look-ahead predicted";
    EXPECT_EQ(step["micro_batches"], plan["gradient_accumulation_steps"]);
  }
}

/// Parameters: the precision and the type of the optimizer's moments.
class PlannedRun : public VirtualGpuTest, public testing::WithParamInterface<std::pair<const char*, const char*>> {};

INSTANTIATE_TEST_SUITE_P(With, PlannedRun,
                         testing::Values(std::pair{"bf16", "fp32"}, std::pair{"bf16", "bf16"},
                                         std::pair{"bf16", "8bit"}, std::pair{"fp16", "8bit"}),
                         [](const auto& instance) {
                           return std::string(instance.param.first) + "_" + instance.param.second + "_states";
                         });

/// The global batch is the data set, so that every step has its worst samples: the planned batch,
/// but for the order.
TEST_P(PlannedRun, UsesThePlannedMemory) {
  const auto& [precision, states] = GetParam();
  const Result result = train_on_test_gpu({std::string("training.precision=") + precision,
                                           std::string("training.optimizer_states=") + states,
                                           "training.global_batch_size=11", "memory.look_ahead=false", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto plan = json_file(std::string(kVirtualRun) + "plan.json");
  EXPECT_EQ(plan["micro_batch_size"].get<int>() * plan["gradient_accumulation_steps"].get<int>(), 11);

  const auto& measured = plan["measured"];
  const auto planned_reserved = plan["memory"]["reserved_peak_bytes"].get<double>();
  const auto planned_allocated = plan["memory"]["allocated_peak_bytes"].get<double>();
  EXPECT_LE(measured["reserved_peak_bytes"], planned_reserved);
  EXPECT_GE(measured["reserved_peak_bytes"], 0.9 * planned_reserved);
  EXPECT_LE(measured["allocated_peak_bytes"], planned_allocated);
  EXPECT_GE(measured["allocated_peak_bytes"], 0.9 * planned_allocated);
  EXPECT_EQ(measured["allocation_retries"], 0);
  EXPECT_EQ(measured["steps"], 4);
  EXPECT_GE(measured["device_used_bytes"],
            plan["memory"]["context_bytes"].get<int64_t>() + measured["reserved_peak_bytes"].get<int64_t>());

  int64_t max_bytes = 0;
  for (const auto& [allocated, reserved] : peaks()) max_bytes = std::max(max_bytes, reserved);
  EXPECT_EQ(measured["reserved_peak_bytes"], max_bytes);
  const auto summary = nlohmann::json::parse(result.out);
  EXPECT_EQ(summary["steps"], 4);
  EXPECT_TRUE(summary["last_loss"].is_null());
  EXPECT_TRUE(summary["checkpoint"].is_null());
  EXPECT_EQ(summary["reserved_peak_bytes"], max_bytes);
  EXPECT_EQ(summary["planned_peak_bytes"], plan["memory"]["reserved_peak_bytes"]);
}

TEST_F(VirtualGpuTest, TheLedgerCountsEverySample) {
  ASSERT_EQ(train_on_test_gpu({"training.max_steps=2", "memory.look_ahead=false"}).exit_code, 0);
  const auto ledger = json_file(std::string(kVirtualRun) + "ledger.json");
  EXPECT_EQ(ledger["samples"], kRecords);
  EXPECT_EQ(ledger["used"], 8);
  EXPECT_EQ(ledger["not_reached"], kRecords - 8);
  EXPECT_EQ(ledger["dropped"], 0);
  EXPECT_EQ(ledger["failed"], 0);
}

TEST_F(VirtualGpuTest, MemoryIsDeterministic) {
  ASSERT_EQ(train_on_test_gpu({}).exit_code, 0);
  const auto first = peaks();
  const auto first_plan = json_file(std::string(kVirtualRun) + "plan.json");
  std::filesystem::remove_all(folder() / "run");
  ASSERT_EQ(train_on_test_gpu({}).exit_code, 0);
  EXPECT_EQ(peaks(), first);
  EXPECT_EQ(json_file(std::string(kVirtualRun) + "plan.json")["memory"], first_plan["memory"]);
}

TEST_F(VirtualGpuTest, KeepsAFixedMicroBatch) {
  ASSERT_EQ(
      train_on_test_gpu({"training.micro_batch_size=2", "memory.recompute=1", "memory.look_ahead=false"}).exit_code, 0);
  const auto plan = json_file(std::string(kVirtualRun) + "plan.json");
  EXPECT_EQ(plan["micro_batch_size"], 2);
  EXPECT_EQ(plan["gradient_accumulation_steps"], 2);
  EXPECT_EQ(plan["recompute"]["vision_blocks"], 1);
  EXPECT_EQ(plan["recompute"]["language_blocks"], 1);
  for (const auto& step : step_lines(std::string(kVirtualRun) + "metrics.jsonl")) EXPECT_EQ(step["micro_batches"], 2);
}

TEST_F(VirtualGpuTest, RejectsATooSmallLimitWithSuggestions) {
  const Result result = train_on_test_gpu({"memory.limit_gb=0.55"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("does not fit"), HasSubstr("memory.limit_gb="), Not(HasSubstr("--gpu ")),
                                Not(HasSubstr("a GPU with"))));
  EXPECT_FALSE(std::filesystem::exists(folder() / kVirtualRun / "metrics.jsonl"));
}

TEST_F(VirtualGpuTest, RejectsAGpuWithoutBf16) {
  const Result result = train_on_gpu("t4", {"training.precision=bf16"});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("Tesla T4"), HasSubstr("training.precision=fp32")));
  for (const char* precision : {"fp32", "fp16"}) {
    const Result run = train_on_gpu("t4", {std::string("training.precision=") + precision, "memory.look_ahead=false"});
    EXPECT_EQ(run.exit_code, 0) << precision;
  }
}

TEST_F(VirtualGpuTest, RejectsAnUnknownGpu) {
  const Result result = train_on_gpu("rtx409", {});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean rtx4090?"));
}

TEST_F(VirtualGpuTest, OnlyTrainRunsOnAVirtualGpu) {
  const Result result =
      run({"eval", "--config", "train.yaml", "--checkpoint", checkpoint().string(), "--device", "virtual:h100"});
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_THAT(result.err, HasSubstr("only train supports a virtual GPU"));
}

/// Preloading the stub libraries with a real device would train nothing, so it is refused.
class PreloadedStubLibrariesTest : public VirtualGpuTest {
 protected:
  Result run_with_stand_ins(const std::vector<std::string>& arguments) const {
    setenv("LD_PRELOAD", VLMTRAIN_VGPU_PRELOAD, 1);
    setenv("VLMTRAIN_VGPU_NAME", "rtx4090", 1);
    const Result result = run(arguments);
    unsetenv("VLMTRAIN_VGPU_NAME");
    unsetenv("LD_PRELOAD");
    return result;
  }

  void expect_refused(const std::vector<std::string>& arguments) const {
    const Result result = run_with_stand_ins(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("the stub CUDA libraries are preloaded"), HasSubstr("LD_PRELOAD"),
                                  HasSubstr("--device virtual:rtx4090")));
  }
};

TEST_F(PreloadedStubLibrariesTest, AreRejectedByARunOnARealGpu) {
  expect_refused({"--config", "train.yaml", "--device", "cuda"});
  expect_refused({"--config", "train.yaml", "--device", "cuda:0"});
  EXPECT_FALSE(std::filesystem::exists(folder() / "run"));
}

TEST_F(PreloadedStubLibrariesTest, AreRejectedByAPlanForTheLocalGpu) {
  expect_refused({"plan", "--model", "smolvlm-tiny"});
}

}  // namespace

}  // namespace vlmtrain::e2e
