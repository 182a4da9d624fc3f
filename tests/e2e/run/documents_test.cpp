#include <cmath>
#include <set>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::Each;
using testing::HasSubstr;

/// Runs over conversations, texts and documents with images.
class DocumentsTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    setenv("VLMTRAIN_CACHE", (folder() / "cache").c_str(), 1);
    auto mixed = records();
    std::string long_text;
    for (int i = 0; i < 120; ++i) long_text += "Sentence " + std::to_string(i) + ". ";
    mixed.push_back({{"id", "text"}, {"text", "A short text without images."}});
    mixed.push_back({{"id", "book"}, {"text", long_text}});
    mixed.push_back(
        {{"id", "page"}, {"texts", {"Before.", nullptr, "After."}}, {"images", {nullptr, image(0), nullptr}}});
    mixed.push_back({{"id", "blocks"}, {"document", {{{"type", "image"}, {"image", image(1)}}, "A caption."}}});
    mixed.push_back({{"id", "mmc4"},
                     {"text_list", {"One.", "Two."}},
                     {"image_info", {{{"image_name", image(0)}, {"matched_text_index", 1}}}}});
    write_records(mixed);
  }
  void TearDown() override {
    unsetenv("VLMTRAIN_CACHE");
    CommandTest::TearDown();
  }

  std::string image(size_t index) const { return entries(folder() / "images").at(index); }

  nlohmann::ordered_json inspect(std::vector<std::string> overrides) const {
    overrides.insert(overrides.begin(), {"inspect", "--config", "train.yaml", "--json"});
    const Result result = run(overrides);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::ordered_json::parse(result.out);
  }
};

TEST_F(DocumentsTest, TrainsOnPacksOfDocumentsAndConversations) {
  train_well({"data.packing=true", "data.pack_max_tokens=1024", "data.text_window_tokens=200", "training.max_steps=6"});
  const auto steps = step_lines("run/metrics.jsonl");
  ASSERT_EQ(steps.size(), 6U);
  for (const auto& step : steps) EXPECT_TRUE(std::isfinite(step["loss"].get<double>()));
  EXPECT_LT(steps.back()["loss"].get<double>(), steps.front()["loss"].get<double>());
  std::set<std::string> ids;
  for (const auto& line : step_lines("run/samples.jsonl")) {
    const std::string text = line.dump();
    for (const char* id : {"text", "book, window 1", "book, window 2", "page", "blocks", "mmc4", "sample-0"}) {
      if (text.find("\"" + std::string(id) + "\"") != std::string::npos) ids.insert(id);
    }
  }
  EXPECT_EQ(ids.size(), 7U) << testing::PrintToString(ids);
}

TEST_F(DocumentsTest, InspectCountsWindows) {
  const auto whole = inspect({}), windows = inspect({"data.text_window_tokens=100"});
  const int64_t num_records = 16;
  EXPECT_EQ(whole["samples"], num_records) << whole.dump();
  const int64_t num_windows = windows["samples"].get<int64_t>() - num_records + 1;
  EXPECT_GT(num_windows, 3);
  EXPECT_EQ(whole["histograms"]["label_tokens"]["sum"], windows["histograms"]["label_tokens"]["sum"])
      << "each token is learned once";
}

TEST_F(DocumentsTest, PlansRunsWithDocuments) {
  const Result result =
      run({"plan", "--config", "train.yaml", "--gpu-gb", "24", "--json", "data.text_window_tokens=100"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["fits"], true);
  EXPECT_THAT(result.err, HasSubstr("1 text longer than 100 tokens is split into windows"));
}

TEST_F(DocumentsTest, InterruptedRunsContinueExactly) {
  const auto settings = [](const std::string& dir) {
    return std::vector<std::string>{
        "output.dir=" + dir,   "data.text_window_tokens=64", "training.global_batch_size=3", "training.max_steps=9",
        "output.save_steps=3", "output.save_total_limit=9",  "output.sample_predictions=0"};
  };
  train_well(settings("whole"));
  std::filesystem::copy(folder() / "whole", folder() / "resumed", std::filesystem::copy_options::recursive);
  for (const char* step : {"step-6", "step-9"}) std::filesystem::remove_all(folder() / "resumed/checkpoints" / step);
  std::filesystem::remove_all(folder() / "cache");  // the windows are counted again
  train_well(settings("resumed"));
  const auto whole = step_lines("whole/metrics.jsonl"), resumed = step_lines("resumed/metrics.jsonl");
  ASSERT_EQ(whole.size(), 9U);
  ASSERT_EQ(resumed.size(), 9U);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i]["samples"], 3) << i;
    for (const char* key : {"loss", "tokens", "label_tokens"}) EXPECT_EQ(whole[i][key].dump(), resumed[i][key].dump());
  }
  EXPECT_EQ(read_text(folder() / "whole/samples.jsonl"), read_text(folder() / "resumed/samples.jsonl"));
  const char* weights = "checkpoints/step-9/model.safetensors";
  EXPECT_EQ(read_text(folder() / "whole" / weights), read_text(folder() / "resumed" / weights));
}

TEST_F(DocumentsTest, EvaluationGivesDocumentsALossAndNoAnswer) {
  train_well({"training.max_steps=1"});
  const Result result = run({"eval", "--config", "train.yaml", "--checkpoint", "run/checkpoints/step-1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto scores = nlohmann::json::parse(result.out);
  EXPECT_EQ(scores["samples"], kRecords) << "only conversations have answers: " << scores;
  EXPECT_EQ(scores["label_tokens"], inspect({})["histograms"]["label_tokens"]["sum"]);
}

TEST_F(DocumentsTest, WindowsLargerThanSamplesAreAnError) {
  const Result result = train({"data.text_window_tokens=300", "data.max_length=200"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("data.text_window_tokens: is 300, more than data.max_length=200"));
}

TEST_F(DocumentsTest, BadDocumentsAreNamed) {
  auto bad = records();
  bad.push_back({{"id", "empty"}, {"text", ""}});
  bad.push_back({{"id", "both"}, {"texts", {"One."}}, {"images", {image(0)}}});
  write_records(bad);
  const Result result = train({});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("no text to learn"));
}

}  // namespace

}  // namespace vlmtrain::e2e
