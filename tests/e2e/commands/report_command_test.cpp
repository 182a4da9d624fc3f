#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;

class ReportCommandTest : public CommandTest {};

TEST_F(ReportCommandTest, WritesThePageOfARun) {
  train_well({"training.max_steps=3"});
  const Result result = run({"report", "run"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("run/report.html: written"));
  const std::string page = read_text(folder() / "run/report.html");
  const std::string opening = "<script type=\"application/json\" id=\"data\">";
  const size_t first = page.find(opening) + opening.size();
  const auto data = nlohmann::json::parse(page.substr(first, page.find("</script>", first) - first));
  const auto steps = step_lines("run/metrics.jsonl");
  ASSERT_EQ(data["curves"]["loss"]["mean"].size(), steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_NEAR(data["curves"]["loss"]["mean"][i], steps[i]["loss"], 1e-3);
  }
  EXPECT_EQ(data["ledger"]["samples"], kRecords);
  EXPECT_EQ(data["config"], read_text(folder() / "run/config.yaml"));
}

TEST_F(ReportCommandTest, RejectsAFolderWithoutARun) {
  for (const char* name : {"nowhere", "images"}) {
    const Result result = run({"report", name});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(name));
    EXPECT_FALSE(std::filesystem::exists(folder() / name / "report.html"));
  }
}

}  // namespace

}  // namespace vlmtrain::e2e
