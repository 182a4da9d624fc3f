#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

/// scripts/gpu_queue.sh without a GPU: entries run on a virtual GPU, and on the CPU checks of values pass and
/// find injected faults.
class GpuQueueTest : public CommandTest {
 protected:
  Result queue(std::vector<std::string> arguments) const {
    const std::string script = std::string(VLMTRAIN_SOURCE_DIR) + "/scripts/gpu_queue.sh";
    for (const char* word : {"--vlmtrain", VLMTRAIN_BINARY, "--out", "out", "--work", "work"}) {
      arguments.emplace_back(word);
    }
    return Process(folder(), arguments, 0, script).wait();
  }

  nlohmann::ordered_json result(const std::string& entry) const {
    return nlohmann::ordered_json::parse(read_text(folder() / "out" / (entry + ".json")));
  }
};

constexpr const char* kCheck = "smolvlm-tiny: fp32 training";

TEST_F(GpuQueueTest, RunsAnEntryOnAVirtualGpuWithoutPassingIt) {
  const Result run = queue({"values-fp32", "--again", "--only", kCheck, "--device", "virtual:h100"});
  ASSERT_EQ(run.exit_code, 3) << run.out << run.err;
  const auto checks = result("values-fp32")["checks"];
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0]["state"], "dry run");
  EXPECT_THAT(checks[0]["text"].get<std::string>(), HasSubstr("no values on a virtual GPU"));
  EXPECT_THAT(run.out, AllOf(HasSubstr("1 dry run"), Not(HasSubstr("passed"))));
}

TEST_F(GpuQueueTest, ComparesValuesOnTheCpuAndWritesResultAndArchive) {
  const Result run = queue({"values-fp32", "--again", "--only", kCheck, "--device", "cpu"});
  ASSERT_EQ(run.exit_code, 3) << run.out << run.err;
  const auto json = result("values-fp32");
  EXPECT_EQ(json["complete"], false) << "only one check is selected";
  EXPECT_EQ(json["gpu"], "cpu");
  ASSERT_EQ(json["checks"].size(), 1U);
  EXPECT_EQ(json["checks"][0]["state"], "passed");
  EXPECT_GT(json["checks"][0]["figures"]["worst gradient"]["at_most"], 0);
  EXPECT_TRUE(std::filesystem::exists(folder() / "out/gpu-queue-results.tar.gz"));
}

TEST_F(GpuQueueTest, FindsPlantedFaults) {
  const Result run = queue({"self-test", "values-fp32", "--only", kCheck});
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(split_lines(run.out), AllOf(Contains(HasSubstr("nothing planted: passed: ")),
                                          Contains(HasSubstr("a learning rate 1 % higher: FAILED: ")),
                                          Contains(HasSubstr("samples in another order: FAILED: ")),
                                          Contains("3 faults and controls, 0 not as expected")));
}

TEST_F(GpuQueueTest, ComparesTwoRanksWithOneProcess) {
  const Result run = queue({"ranks", "--again", "--only", "smolvlm-tiny: fp32, mixed batches", "--device", "cpu"});
  ASSERT_EQ(run.exit_code, 3) << run.out << run.err;
  const auto checks = result("ranks")["checks"];
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0]["state"], "passed");
  EXPECT_GT(checks[0]["figures"]["uneven_steps"], 0);
}

TEST_F(GpuQueueTest, StartsNoCheckForWhichTooLittleTimeRemains) {
  const Result run = queue({"values-fp32", "--again", "--device", "cpu", "--seconds", "0.5"});
  EXPECT_EQ(run.exit_code, 3) << run.out << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("values-fp32: not started"), HasSubstr("Entries remain")));
  EXPECT_FALSE(std::filesystem::exists(folder() / "out/values-fp32.json"));
}

TEST_F(GpuQueueTest, ReportsOnceThatThereIsNoGpu) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "this machine has a GPU";
  const Result run = queue({"values-fp32", "--again"});
  EXPECT_EQ(run.exit_code, 2) << run.out;
  EXPECT_THAT(run.err, HasSubstr("--device cuda"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "out/values-fp32.json"));
}

}  // namespace

}  // namespace vlmtrain::e2e
