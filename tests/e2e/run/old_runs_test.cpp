#include "e2e/host.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;

/// Runs that vlmtrain of commit cf49f4c began (data/make_run_cf49f4c.py), resumed and used by this build.
class OldRunsTest : public HostTest, public testing::WithParamInterface<std::string> {
 protected:
  static constexpr const char* kLastCheckpoint = "run/checkpoints/step-24";

  void SetUp() override {
    HostTest::SetUp();
    for (const auto& line : split_lines(read_text(fixture() / "reproducible.env"))) {
      const size_t equals = line.find('=');
      if (!line.starts_with("#")) set(line.substr(0, equals), line.substr(equals + 1));
    }
    for (const std::string& name : {std::string("model"), std::string("data"), GetParam()}) {
      std::filesystem::copy(fixture() / name, folder() / name,
                            std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
    }
    expected_ = nlohmann::json::parse(read_text(fixture() / "expected.json")).at(GetParam());
  }

  static std::filesystem::path fixture() {
    return std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/e2e/data/run_cf49f4c";
  }
  std::filesystem::path run_folder() const { return folder() / GetParam(); }

  Result run(const std::vector<std::string>& arguments) const {
    return Process(run_folder(), arguments, 0, VLMTRAIN_BINARY).wait();
  }

  Result resume() const {
    std::vector<std::string> arguments{"--config", "train.yaml", "--device", "cpu"};
    if (GetParam() == "two_ranks") arguments.insert(arguments.end(), {"--launch", "2"});
    return run(arguments);
  }

  /// Evaluates `checkpoint` as the generator of the fixture did.
  double eval_loss(const std::string& checkpoint) const {
    const Result result = run({"eval", "--config", "train.yaml", "--checkpoint", checkpoint, "--device", "cpu",
                               "--json", "data.eval=../data/held_out.json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? nlohmann::json::parse(result.out).at("loss").get<double>() : 0;
  }

  /// Returns whether the run trains the output projection. Since that commit its gradient is added to the sum
  /// without rounding it to bf16 (CHANGELOG.md).
  bool trains_output() const { return GetParam() != "lora_nf4"; }
  static constexpr double kRoundingTolerance = 2e-3;  // half a unit of bf16

  /// Checks a loss of a resumed step: to the bit, except for what that rounding changes.
  void expect_loss(double actual, double expected) const {
    EXPECT_NEAR(actual, expected, trains_output() ? kRoundingTolerance * expected : 0);
  }

  nlohmann::json expected_;
};

TEST_P(OldRunsTest, ResumesToTheSameLossesAndIsReportedAndEvaluated) {
  const size_t stopped_at = expected_.at("stopped_at");
  ASSERT_EQ(split_lines(read_text(run_folder() / "run/metrics.jsonl")).size(), stopped_at);
  const Result resumed = resume();
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;

  const auto lines = split_lines(read_text(run_folder() / "run/metrics.jsonl"));
  ASSERT_EQ(lines.size(), expected_.at("losses").size());
  for (size_t i = 0; i < lines.size(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i + 1));
    const auto step = nlohmann::json::parse(lines[i]);
    expect_loss(step.at("loss").get<double>(), expected_["losses"][i].get<double>());
    EXPECT_EQ(step.contains("forecast_splits"), i >= stopped_at);
    EXPECT_TRUE(step.contains("foreseen_splits")) << "the alias is written too";
    // Summed in float64 since that commit (CHANGELOG.md), so in float32 of both only the last bits differ.
    const auto norm = expected_["gradient_norms"][i].get<double>();
    EXPECT_NEAR(step.at("grad_norm").get<double>(), norm, (trains_output() ? kRoundingTolerance : 1e-6) * norm);
  }
  expect_loss(eval_loss(kLastCheckpoint), expected_.at("eval_loss").get<double>());

  std::filesystem::remove(run_folder() / "run/report.html");
  const Result report = run({"report", "run"});
  ASSERT_EQ(report.exit_code, 0) << report.err;
  const std::string page = read_text(run_folder() / "run/report.html");
  EXPECT_THAT(page, HasSubstr("</html>"));
  EXPECT_THAT(page, HasSubstr(expected_["losses"].back().dump().substr(0, 5))) << "no loss of the last step";
}

/// Merges the adapter that the old build saved, and the one that this build saved after the resume.
TEST_P(OldRunsTest, AdaptersAreMerged) {
  const std::string saved = "run/checkpoints/step-" + std::to_string(expected_.at("stopped_at").get<int>());
  const Result old_adapter = run({"merge", "--adapter", saved, "--base", "../model", "--out", "merged-old"});
  if (GetParam() != "lora_nf4") {
    EXPECT_EQ(old_adapter.exit_code, 4) << "a full checkpoint is no adapter";
    return;
  }
  ASSERT_EQ(old_adapter.exit_code, 0) << old_adapter.err;
  ASSERT_EQ(resume().exit_code, 0);
  const Result new_adapter = run({"merge", "--adapter", kLastCheckpoint, "--out", "merged-new"});
  ASSERT_EQ(new_adapter.exit_code, 0) << new_adapter.err;
  const double before = eval_loss("merged-old");
  const double after = eval_loss("merged-new");
  EXPECT_LT(after, before) << "the steps after the resume do not show in the merged weights";
}

INSTANTIATE_TEST_SUITE_P(Runs, OldRunsTest, testing::Values("full", "lora_nf4", "two_ranks"),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace

}  // namespace vlmtrain::e2e
