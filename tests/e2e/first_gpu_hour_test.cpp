#include "e2e/command.h"

namespace vlmtrain::e2e {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

/// scripts/first_gpu_hour.sh where there is no GPU: it goes through on a virtual card and judges nothing there, and on
/// the CPU its checks of values run, pass, and fail where something is planted.
class FirstGpuHourTest : public CommandTest {
 protected:
  Result hour(std::vector<std::string> arguments) const {
    const std::string script = std::string(VLMTRAIN_SOURCE_DIR) + "/scripts/first_gpu_hour.sh";
    for (const char* word : {"--vlmtrain", VLMTRAIN_BINARY, "--out", "out"}) arguments.emplace_back(word);
    return Process(folder(), arguments, 0, script).wait();
  }

  std::vector<nlohmann::ordered_json> results() const { return step_lines("out/results.jsonl"); }
};

constexpr const char* kCheck = "smolvlm-tiny: fp32 training";

TEST_F(FirstGpuHourTest, AVirtualCardIsGoneThroughAndNothingIsPassed) {
  const Result result = hour({"correctness-1", "--only", "smolvlm-tiny", "--device", "virtual:h100"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  ASSERT_EQ(results().size(), 3U);
  for (const auto& line : results()) {
    EXPECT_EQ(line["state"], "dry run") << line;
    EXPECT_THAT(line["text"].get<std::string>(), HasSubstr("no values on a virtual card"));
  }
  EXPECT_THAT(read_text(folder() / "out/report.md"),
              AllOf(HasSubstr(kCheck), HasSubstr("3 dry run"), Not(HasSubstr("passed"))));
}

TEST_F(FirstGpuHourTest, OnTheCpuValuesAreComparedAndWhatIsDoneIsNotDoneAgain) {
  const std::vector<std::string> arguments{"correctness-1", "--only", kCheck, "--device", "cpu"};
  const Result first = hour(arguments);
  ASSERT_EQ(first.exit_code, 0) << first.out << first.err;
  ASSERT_EQ(results().size(), 1U);
  EXPECT_EQ(results()[0]["state"], "passed");
  EXPECT_GT(results()[0]["figures"]["worst gradient"]["at_most"], 0);

  // A line that a cut-off left unfinished is forgotten, and what was done is not done again.
  write_text(folder() / "out/results.jsonl", read_text(folder() / "out/results.jsonl") + "{\"part\": \"corr");
  const Result second = hour(arguments);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("done before: " + std::string(kCheck)));
  EXPECT_EQ(results().size(), 1U);
}

TEST_F(FirstGpuHourTest, WhatIsPlantedIsFound) {
  const Result result = hour({"self-test", "--only", kCheck});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  ASSERT_EQ(results().size(), 3U) << "as it is, with another learning rate, with another order of samples";
  for (const auto& line : results()) EXPECT_EQ(line["state"], "passed") << line;
  EXPECT_THAT(results()[0]["text"].get<std::string>(), HasSubstr("passed: "));
  for (size_t i = 1; i < 3; ++i) EXPECT_THAT(results()[i]["text"].get<std::string>(), HasSubstr("FAILED: ")) << i;
}

TEST_F(FirstGpuHourTest, TwoRanksAreHeldAgainstOneProcess) {
  const Result result = hour({"ranks", "--only", "smolvlm-tiny: fp32, mixed batches", "--device", "cpu"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  ASSERT_EQ(results().size(), 1U);
  EXPECT_EQ(results()[0]["state"], "passed");
  EXPECT_GT(results()[0]["figures"]["uneven_steps"], 0);
}

TEST_F(FirstGpuHourTest, APartKeepsItsBudgetAndSaysThatItIsNotDone) {
  const Result result = hour({"correctness-1", "--only", kCheck, "--device", "cpu", "--minutes", "0.0005"});
  EXPECT_EQ(result.exit_code, 3) << result.out << result.err;
  ASSERT_EQ(results().size(), 1U);
  EXPECT_EQ(results()[0]["state"], "out of time");
  EXPECT_THAT(result.out, HasSubstr("call it again"));
}

TEST_F(FirstGpuHourTest, WhereThereIsNoGpuItSaysSoOnce) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "there is a GPU";
  const Result result = hour({"correctness-1"});
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_THAT(result.err, HasSubstr("--device cuda"));
  EXPECT_FALSE(std::filesystem::exists(folder() / "out/report.md"));
}

}  // namespace
}  // namespace vlmtrain::e2e
