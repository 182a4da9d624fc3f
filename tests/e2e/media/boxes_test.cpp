#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;

class BoxesTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    write_records(make_records({{"bbox", {{0.1, 0.2, 0.5, 0.9}}}, {"bbox_type", "norm1"}}, "<bbox>"));
  }

  /// Returns a record for each image, with `objects` and the answer `answer`.
  static nlohmann::json make_records(const nlohmann::json& objects, const std::string& answer) {
    auto records = nlohmann::json::array();
    for (const auto& image : std::filesystem::directory_iterator(source() / "images")) {
      const std::string name = image.path().filename().string();
      records.push_back(
          {{"id", name},
           {"image", name},
           {"objects", objects},
           {"messages",
            {{{"role", "user"}, {"content", "<image>Where is it?"}}, {{"role", "assistant"}, {"content", answer}}}}});
    }
    return records;
  }

  std::vector<double> train_and_read_losses(std::vector<std::string> overrides) const {
    train_well(std::move(overrides));
    std::vector<double> losses;
    for (const auto& step : step_lines("run/metrics.jsonl")) {
      if (step.contains("loss")) losses.push_back(step["loss"]);
    }
    return losses;
  }
};

TEST_F(BoxesTest, AreTrainedScoredAndDrawn) {
  train_well({"training.eval_steps=4", "output.sample_predictions_share=1"});
  const auto evaluation = run({"eval", "--config", "train.yaml", "--checkpoint", "run", "--json", "--device", "cpu"});
  ASSERT_EQ(evaluation.exit_code, 0) << evaluation.err;
  const auto metrics = nlohmann::json::parse(evaluation.out)["metrics"];
  EXPECT_TRUE(metrics.contains("box_iou") && metrics.contains("box_accuracy")) << metrics;
  for (const auto& line : step_lines("run/predictions.jsonl")) {
    EXPECT_EQ(line["expected"], "[100, 200, 500, 900]");
    EXPECT_THAT(line["boxes"]["overlay"].get<std::string>(), testing::StartsWith("data:image/jpeg"));
  }
  EXPECT_THAT(read_text(folder() / "run/report.html"), HasSubstr("\"boxes\""));
}

TEST_F(BoxesTest, InspectShowsThemAsTheModelGetsThem) {
  const auto result = run({"inspect", "--config", "train.yaml", "--json", "--html", "inspect.html"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto sample = nlohmann::json::parse(result.out)["shown"][0];
  EXPECT_THAT(sample["label_text"].get<std::string>(), HasSubstr("[100, 200, 500, 900]"));
  for (const auto& medium : sample["media"]) {
    const double width = medium["width"], height = medium["height"];
    ASSERT_EQ(medium["boxes"].size(), 1) << medium;
    EXPECT_NEAR(medium["boxes"][0][0].get<double>(), 0.1 * width, 1e-6);
    EXPECT_NEAR(medium["boxes"][0][3].get<double>(), 0.9 * height, 1e-6);
  }
  EXPECT_THAT(read_text(folder() / "inspect.html"), HasSubstr("class=\"box\""));
}

TEST_F(BoxesTest, NumbersInTextsTrainAsMarks) {
  const std::vector<double> losses = train_and_read_losses({});
  write_records(make_records(nullptr, "[0.1, 0.2, 0.5, 0.9]"));
  std::filesystem::remove_all(folder() / "run");
  EXPECT_EQ(train_and_read_losses({"data.boxes.in=normalized_1"}), losses);
  std::filesystem::remove_all(folder() / "run");
  EXPECT_NE(train_and_read_losses({}), losses) << "the numbers of the data";
}

TEST_F(BoxesTest, AugmentedPackedRunsResume) {
  const std::vector<std::string> settings{"data.augment.flip=0.5",     "data.packing=true",
                                          "data.pack_max_tokens=1024", "training.global_batch_size=1",
                                          "training.eval_steps=0",     "data.eval="};
  const std::vector<double> losses = train_and_read_losses(settings);
  std::filesystem::remove_all(folder() / "run");
  auto first_half = settings;
  first_half.insert(first_half.end(), {"output.save_steps=2", "training.max_steps=4"});
  train_well(first_half);
  std::filesystem::remove_all(folder() / "run/checkpoints/step-4");
  EXPECT_EQ(train_and_read_losses(first_half), losses);
}

TEST_F(BoxesTest, BadBoxesEndTheRun) {
  const auto expect_error = [&](const nlohmann::json& objects, const std::string& answer, const char* message) {
    write_records(make_records(objects, answer));
    const auto result = train({});
    EXPECT_EQ(result.exit_code, 4) << result.err;
    EXPECT_THAT(result.err, HasSubstr(message));
  };
  expect_error({{"bbox", {{0, 0, 99999, 5}}}}, "<bbox>", "outside of its image");
  expect_error({{"bbox", {{0, 0, 1, 1}, {0, 0, 2, 2}}}}, "<bbox>", "1 marks <bbox> for 2 boxes");
  expect_error({{"bbox", {{0, 0, 1, 1}}}, {"bbox_type", "cm"}}, "<bbox>", "\"bbox_type\" is \"cm\"");
}

}  // namespace

}  // namespace vlmtrain::e2e
