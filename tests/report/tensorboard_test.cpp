#include "vlmtrain/report/tensorboard.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>

#include "report/format/html.h"
#include "report/run_example.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::report {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Crc32cTest, MatchesRfc3720) {
  EXPECT_EQ(compute_crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(compute_crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(compute_crc32c("123456789"), 0xe3069283U);
}

/// scripts/make_tensorboard_golden.py writes the same events with TensorBoard's own messages and
/// reads them.
TEST(TensorBoardEventTest, MatchesTheGoldenFile) {
  using namespace std::string_literals;
  const std::string image = "\xff\xd8 not a picture, but bytes \0\xff"s;
  const std::string events[] = {
      make_version_event(1.5e9),
      make_session_start_event(1.5e9, 1),
      make_text_event(1.5e9, 0, "config", "a: ü\n"),
      make_scalars_event(1.5e9 + 0.25, 1, {{"train/loss", 2.5}, {"train/rate", 1e-4}}),
      make_scalars_event(1.5e9 + 0.5, 300, {{"train/loss", std::nan("")}}),
      make_image_event(1.5e9 + 1, 300, "answers/a/image 1", image, {.height = 120, .width = 160}),
      make_session_start_event(1.5e9 + 2, 300),
      make_scalars_event(1.5e9 + 3, 300, {{"train/loss", 0.5}}),
      make_scalars_event(1.5e9 + 4, int64_t{1} << 40, {{"train/loss", 0.25}})};
  std::string file;
  for (const auto& event : events) file += make_framed_event(event);
  const std::string golden =
      read_bytes(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/report/data/tensorboard/events.golden");
  ASSERT_FALSE(golden.empty());
  EXPECT_EQ(file == golden, true);
}

std::vector<std::filesystem::path> list_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST(TensorBoardEventTest, WritesValidUtf8) {
  EXPECT_EQ(make_text_event(0, 1, "answers/caf\xE9\n", "a\nb\xFF"),
            make_text_event(0, 1, "answers/caf\\xe9\\n", "a\nb\\xff"));
  EXPECT_EQ(make_scalars_event(0, 1, {{"tasks/\x1b[2J/loss", 1}}),
            make_scalars_event(0, 1, {{"tasks/\\x1b[2J/loss", 1}}));
}

TEST(TensorBoardTest, WritesStepsAndAnswers) {
  const RunFolder run;
  const auto folder = run.path() / "tensorboard";
  {
    TensorBoardWriter tensorboard(folder, 0);
    tensorboard.add_text(0, "config", "    model: m");
    for (int64_t step = 1; step <= 3; ++step) tensorboard.add_step(RunFolder::example_step(step, 3));
    const auto image_dir = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/parity/data/mixed_batch/images";
    tensorboard.add_prediction(
        {.step = 3,
         .id = "sample",
         .question = "How many?\nSay it.",
         .expected_answer = "2",
         .answer = "3",
         .thumbnail_uris = {make_thumbnail_uri(std::filesystem::directory_iterator(image_dir)->path())}});
  }
  ASSERT_EQ(list_files(folder).size(), 1u);
  EXPECT_THAT(list_files(folder)[0].filename().string(),
              testing::MatchesRegex("events\\.out\\.tfevents\\.[0-9]{10}\\..*"));
  const std::string bytes = read_bytes(list_files(folder)[0]);
  for (const char* tag :
       {"train/loss", "speed/tokens_per_second", "memory/predicted_reserved_peak_gb", "tasks/read/loss",
        "tasks/count/accuracy", "answers/sample/image 1", "> How many?  \n> Say it.", "model: m"}) {
    EXPECT_THAT(bytes, HasSubstr(tag));
  }
  EXPECT_THAT(bytes, Not(HasSubstr("loss_scale"))) << "it is not fp16";
}

TEST(TensorBoardTest, WritesEvaluationsAndTheBestOfThem) {
  const RunFolder run;
  StepMetrics metrics = RunFolder::example_step(7, 9);
  metrics.evaluation = RunFolder::example_evaluation(0.5);
  metrics.evaluation->total.metrics = {{"anls", 0.5}, {"wer", std::nullopt}};
  metrics.tasks["read"].weight = 1.75;
  TensorBoardWriter(run.path(), 0).add_step(metrics);
  std::string bytes = read_bytes(list_files(run.path())[0]);
  const std::map<std::string, float> values{{"eval/loss", 0.7F},
                                            {"eval/exact_match", 0.25F},
                                            {"eval/anls", 0.5F},
                                            {"eval/seconds", 12.5F},
                                            {"eval/tasks/count/loss", 1.0F},
                                            {"eval/tasks/count/exact_match", 0.5F},
                                            {"eval/tasks/read/loss", 1.5F},
                                            {"tasks/read/weight", 1.75F}};
  for (const auto& [tag, value] : values) {
    std::string number(sizeof value, '\0');
    std::memcpy(number.data(), &value, sizeof value);
    EXPECT_THAT(bytes, HasSubstr(tag + "\x15" + number)) << tag << ", as a Summary.Value's tag and simple_value";
  }
  EXPECT_THAT(bytes, Not(HasSubstr("eval/tasks/read/exact_match"))) << "the task has no exact match";
  EXPECT_THAT(bytes, Not(HasSubstr("eval/wer"))) << "it applies to no answer";
  EXPECT_THAT(bytes, Not(HasSubstr("eval/best")));
  metrics.evaluation->is_best = true;
  std::filesystem::remove(list_files(run.path())[0]);
  TensorBoardWriter(run.path(), 0).add_step(metrics);
  bytes = read_bytes(list_files(run.path())[0]);
  EXPECT_THAT(bytes, HasSubstr("eval/best"));
  EXPECT_THAT(bytes, HasSubstr("step 7: validation loss 0.7, exact match 25.0 %, anls 0.5, 12 s"));
}

TEST(TensorBoardTest, WritesMasks) {
  const RunFolder run;
  StepMetrics metrics = RunFolder::example_step(7, 9);
  metrics.mask_learning_rate = 0.25;
  metrics.loss_components = LossComponents{.text = 1.5, .bce = 0.5, .dice = 0.75};
  metrics.evaluation = RunFolder::example_evaluation(0.5);
  metrics.evaluation->total.masks = MaskMetrics{.masks = 3, .dice = 0.875, .iou = 0.75, .hausdorff95 = 4};
  metrics.evaluation->tasks["count"].masks = MaskMetrics{.masks = 3, .dice = 0.875, .iou = 0.75};
  metrics.evaluation->mask_metrics_by_structure["liver"] = {.masks = 3, .dice = 0.625, .iou = 0.5};
  TensorBoardWriter tensorboard(run.path(), 0);
  tensorboard.add_step(metrics);
  const at::Tensor image = at::full({3, 40, 60}, 90, at::kByte), mask = at::full({40, 60}, 1, at::kByte);
  tensorboard.add_prediction(
      {.step = 7, .id = "sample", .masks = {{.dice = 1, .overlay_uri = make_overlay_uri(image, mask, mask)}}});
  const std::string bytes = read_bytes(list_files(run.path())[0]);
  const std::map<std::string, float> values{{"train/loss_text", 1.5F},
                                            {"train/loss_mask_bce", 0.5F},
                                            {"train/loss_mask_dice", 0.75F},
                                            {"train/mask_learning_rate", 0.25F},
                                            {"eval/dice", 0.875F},
                                            {"eval/iou", 0.75F},
                                            {"eval/hausdorff95", 4.0F},
                                            {"eval/structures/liver/dice", 0.625F},
                                            {"eval/tasks/count/dice", 0.875F}};
  for (const auto& [tag, value] : values) {
    std::string number(sizeof value, '\0');
    std::memcpy(number.data(), &value, sizeof value);
    EXPECT_THAT(bytes, HasSubstr(tag + "\x15" + number)) << tag;
  }
  EXPECT_THAT(bytes, HasSubstr("answers/sample/mask 1"));
  EXPECT_THAT(bytes, Not(HasSubstr("eval/tasks/count/hausdorff95"))) << "one side was always empty";
}

TEST(TensorBoardTest, AResumedRunPurgesTheStepsAfterItsCheckpoint) {
  const RunFolder run;
  { const TensorBoardWriter first(run.path(), 0); }
  { const TensorBoardWriter second(run.path(), 30); }
  const auto files = list_files(run.path());
  ASSERT_EQ(files.size(), 2u) << "also within a second";
  const auto strip_times = [](std::string bytes) {
    return bytes.substr(bytes.find("brain.Event:2") + 13 + 4 + 12 + 9);
  };
  EXPECT_THAT(strip_times(read_bytes(files[0])), testing::StartsWith("\x10\x01:\x02\x08\x01"));
  EXPECT_THAT(strip_times(read_bytes(files[1])), testing::StartsWith("\x10\x1f:\x02\x08\x01")) << "from step 31";
}

TEST(TensorBoardTest, AFolderThatCannotBeCreatedIsReported) {
  const RunFolder run;
  run.write("file", "");
  try {
    const TensorBoardWriter tensorboard(run.path() / "file/tensorboard", 0);
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), HasSubstr("file/tensorboard"));
  }
}

}  // namespace
}  // namespace vlmtrain::report
