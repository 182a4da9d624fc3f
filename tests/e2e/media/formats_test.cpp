#include <fmt/format.h>

#include <set>

#include "e2e/command.h"
#include "io/tar_writer.h"

namespace vlmtrain::e2e {

namespace {

using testing::HasSubstr;

/// A data set trains alike in every format.
class FormatsTest : public CommandTest {
 protected:
  /// Returns the samples and the loss of each step.
  std::vector<nlohmann::ordered_json> train_and_read_steps(const std::vector<std::string>& overrides) const {
    std::filesystem::remove_all(folder() / "run");
    const Result result = train(overrides);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<nlohmann::ordered_json> course;
    if (result.exit_code != 0) return course;
    for (const auto& step : step_lines("run/metrics.jsonl"))
      course.push_back({step.at("loss"), step.at("label_tokens")});
    for (const auto& step : step_lines("run/samples.jsonl")) course.push_back(step);
    return course;
  }

  std::string lines(size_t first, size_t end) const {
    std::string text;
    for (size_t i = first; i < end; ++i) text += records().at(i).dump() + "\n";
    return text;
  }

  static std::vector<std::string> list_images(const nlohmann::json& record) {
    if (!record.contains("image")) return {};
    const auto& image = record["image"];
    return image.is_string() ? std::vector{image.get<std::string>()} : image.get<std::vector<std::string>>();
  }

  std::string tar(size_t first, size_t end) const {
    io::TarWriter tar;
    for (size_t i = first; i < end; ++i) {
      auto record = records().at(i);
      const auto images = list_images(record);
      for (size_t image = 0; image < images.size(); ++image) {
        const auto file = folder() / "images" / images[image];
        tar.add(fmt::format("r{}.{}{}", i, image, file.extension().string()), read_text(file));
      }
      record.erase("image");
      tar.add(fmt::format("r{}.json", i), record.dump());
    }
    return tar.closed();
  }
};

TEST_F(FormatsTest, AllFormatsTrainAlike) {
  const auto of_json = train_and_read_steps({});
  ASSERT_EQ(of_json.size(), 8U);
  write_text(folder() / "all.jsonl", lines(0, kRecords));
  EXPECT_EQ(train_and_read_steps({"data.train=all.jsonl"}), of_json);
  write_text(folder() / "part-2.jsonl", lines(0, 5));
  write_text(folder() / "part-10.jsonl", lines(5, kRecords));
  EXPECT_EQ(train_and_read_steps({"data.train=part-*.jsonl"}), of_json);
  std::filesystem::create_directory(folder() / "shards");
  write_text(folder() / "shards/1.tar", tar(0, 3));
  write_text(folder() / "shards/2.tar", tar(3, kRecords));
  EXPECT_EQ(train_and_read_steps({"data.train=shards"}), of_json);
}

TEST_F(FormatsTest, ParquetTrainsAsJsonDoes) {
  const auto parquet = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/io/data/mixed_batch.parquet";
  const std::string choice = "data.train=" + parquet.string();
  const Result result = train({choice, "training.max_steps=1"});
  if (result.err.find("run scripts/setup.sh to download Arrow") != std::string::npos) GTEST_SKIP() << result.err;
  EXPECT_EQ(train_and_read_steps({choice}), train_and_read_steps({}));
}

TEST_F(FormatsTest, EvaluatesAHeldOutShare) {
  const Result result =
      train({"data.eval=0.25", "training.eval_steps=2", "training.epochs=2", "training.max_steps=auto"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("data train.json: 3 of 11 samples are held out of training (data.eval=0.25)"));
  EXPECT_EQ(json_file("run/ledger.json").at("samples"), 8);
  std::set<std::string> train_result;
  for (const auto& step : step_lines("run/samples.jsonl")) {
    for (const auto& id : step.at("ids")) train_result.insert(id.get<std::string>());
  }
  EXPECT_EQ(train_result.size(), 8U);
}

}  // namespace

}  // namespace vlmtrain::e2e
