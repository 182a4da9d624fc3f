#include "vlmtrain/train/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "parity/temporary_folder.h"
#include "planner/user_error.h"

namespace vlmtrain::train {

namespace {

namespace fs = std::filesystem;
using planner::get_usage_error;
using testing::AllOf;
using testing::HasSubstr;

/// An empty output.dir, and inputs, one of which a test puts where the run writes.
class RunFilesTest : public testing::Test {
 protected:
  RunFilesTest() {
    fs::create_directories(run_folder());
    config_.output.dir = run_folder();
    config_.data.train = write_input(folder_.path() / "train.json");
    config_.model.path = folder_.path();
    config_file_ = write_input(folder_.path() / "train.yaml");
  }

  fs::path run_folder() const { return folder_.path() / "run"; }

  static fs::path write_input(const fs::path& file) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "something";
    return file;
  }

  void expect_refused(const std::string& text) const {
    EXPECT_THAT(get_usage_error([this] { check_output_files(config_, config_file_); }),
                AllOf(HasSubstr(text), HasSubstr("another output.dir")));
  }

  Config config_;
  fs::path config_file_;

 private:
  const parity::TemporaryFolder folder_;
};

TEST_F(RunFilesTest, AcceptsInputsInOtherFolders) {
  EXPECT_NO_THROW(check_output_files(config_, config_file_));
  config_.data.eval = write_input(run_folder() / "my_data/eval.json");  // next to the run's files
  config_.model.adapter =
      write_input(run_folder() / "checkpoints-of-last-week/step-1/adapter_config.json").parent_path();
  EXPECT_NO_THROW(check_output_files(config_, config_file_));
  config_.data.train = run_folder() / "checkpoints/train.json";  // does not exist
  EXPECT_NO_THROW(check_output_files(config_, config_file_));
}

TEST_F(RunFilesTest, RejectsInputsInFoldersThatTheRunClears) {
  write_input(run_folder() / "run.lock");
  config_.data.eval = write_input(run_folder() / "checkpoints/step-1/eval.json");
  expect_refused("data.eval: ");
}

TEST_F(RunFilesTest, RejectsInputsThatTheRunWrites) {
  write_input(run_folder() / "run.lock");
  config_.data.train = write_input(run_folder() / "samples.jsonl");
  expect_refused("data.train: ");
  config_.data.train = run_folder().parent_path() / "link.jsonl";
  fs::create_symlink(run_folder() / "samples.jsonl", config_.data.train.name());
  expect_refused("samples.jsonl, a file that the run writes");
}

TEST_F(RunFilesTest, DoesNotOverwriteForeignFiles) {
  write_input(run_folder() / "metrics.jsonl");
  EXPECT_THAT(get_usage_error([this] { check_output_files(config_, config_file_); }),
              HasSubstr("contains metrics.jsonl"));
  write_input(run_folder() / "run.lock");
  EXPECT_NO_THROW(check_output_files(config_, config_file_)) << "of a run before";
}

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr data::SampleCountsByMediaKind kImages{
    .samples = 9, .num_samples_with_images = 5, .num_samples_without_media = 4};
constexpr data::SampleCountsByMediaKind kVideos{.samples = 9, .num_samples_with_videos = 9};
constexpr data::SampleCountsByMediaKind kVolumes{.samples = 9, .num_samples_with_volumes = 9};
constexpr data::SampleCountsByMediaKind kWords{.samples = 9, .num_samples_without_media = 9};

class UnusedSettingsTest : public testing::Test {
 protected:
  std::vector<std::string> find_remarks(const data::SampleCountsByMediaKind& census,
                                        bool predicts_masks = false) const {
    return find_unused_settings(config_, census, {.predicts_masks = predicts_masks});
  }

  Config config_;
};

TEST_F(UnusedSettingsTest, DefaultsAreNotReported) {
  for (const auto& census : {kImages, kVideos, kVolumes, kWords}) EXPECT_THAT(find_remarks(census), IsEmpty());
}

TEST_F(UnusedSettingsTest, AugmentationChangesImagesOnly) {
  config_.data.augment = {{"flip", "0.5"}};
  EXPECT_THAT(find_remarks(kImages), IsEmpty());
  for (const auto& census : {kVideos, kVolumes, kWords}) {
    EXPECT_THAT(find_remarks(census),
                ElementsAre(HasSubstr("data.augment={flip: 0.5} has no effect: no sample has an image")));
  }
}

TEST_F(UnusedSettingsTest, ReportsSettingsOfAbsentMedia) {
  config_.data.video_fps = 1;
  config_.data.video_max_frames = 8;
  config_.data.image_max_pixels = 1000;
  EXPECT_THAT(find_remarks(kImages),
              UnorderedElementsAre(HasSubstr("data.video_fps=1"), HasSubstr("data.video_max_frames=8")));
  EXPECT_THAT(find_remarks(kVideos), IsEmpty());
  EXPECT_THAT(find_remarks(kWords),
              UnorderedElementsAre(HasSubstr("data.video_fps"), HasSubstr("data.video_max_frames"),
                                   HasSubstr("data.image_max_pixels")));
  EXPECT_THAT(find_remarks({}), IsEmpty()) << "nothing is known of the samples";
}

TEST_F(UnusedSettingsTest, ReportsSettingsOfAnAbsentVisionTower) {
  config_.model.freeze_vision_tower = true;
  EXPECT_THAT(find_remarks(kWords), IsEmpty());
  EXPECT_THAT(find_unused_settings(config_, kWords, {.takes_media = false}),
              ElementsAre(HasSubstr("model.freeze_vision_tower=true has no effect: the model has no vision tower")));
}

TEST_F(UnusedSettingsTest, ReportsSettingsThatAnotherDisables) {
  config_.data.pack_max_tokens = 9000;
  config_.training.batch_and_tasks.gradnorm_alpha = 3;
  config_.training.loss_scale_growth_steps = 7;
  config_.evaluation.max_new_tokens = 7;
  config_.training.mask_loss_weights.dice = 3;
  EXPECT_THAT(find_remarks(kImages),
              UnorderedElementsAre(HasSubstr("data.packing is false"), HasSubstr("training.gradnorm_alpha=3"),
                                   HasSubstr("training.loss_scale_growth_steps=7"),
                                   HasSubstr("training.eval_steps is 0"), HasSubstr("the model predicts no masks")));
  config_.data.packing = true;
  config_.training.batch_and_tasks.task_weighting = engine::TaskWeighting::kGradNorm;
  config_.training.precision = engine::Precision::kFp16;
  config_.evaluation.steps = 2;
  EXPECT_THAT(find_remarks(kImages, /*predicts_masks=*/true), IsEmpty());
}

TEST_F(UnusedSettingsTest, ReportsAnUnreadEvaluationFile) {
  config_.data.eval = "held_out.json";
  EXPECT_THAT(find_remarks(kImages), IsEmpty()) << "predictions are drawn from it";
  config_.output.num_sample_predictions = 0;
  EXPECT_THAT(find_remarks(kImages), ElementsAre("data.eval=held_out.json has no effect: training.eval_steps and "
                                                 "output.sample_predictions are 0, so nothing reads it"));
  config_.evaluation.steps = 2;
  EXPECT_THAT(find_remarks(kImages), IsEmpty());
}

}  // namespace

}  // namespace vlmtrain::train
