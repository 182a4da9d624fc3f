#include "vlmtrain/train/media_options_of_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"

namespace vlmtrain::train {
namespace {

using io::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class MediaOptionsOfRun : public io::TemporaryFolderTest {
 protected:
  static data::DataOptions trained() {
    data::DataOptions options;
    options.image_max_pixels = 12544;
    options.video_fps = 0.5;
    options.video_layout = data::VideoLayout::kTransformers5;
    return options;
  }
};

TEST_F(MediaOptionsOfRun, AreWrittenWhereTheyAreNotUsual) {
  EXPECT_EQ(media_settings_text({}), "");
  put(kMediaSettingsFile, media_settings_text(trained()));
  EXPECT_THAT(media_settings_of_run(folder()), UnorderedElementsAre("data.image_max_pixels=12544", "data.video_fps=0.5",
                                                                    "data.video_layout=transformers5"));
}

TEST_F(MediaOptionsOfRun, AreTakenUnlessTheUserSaysOtherwise) {
  put(kMediaSettingsFile, media_settings_text(trained()));
  data::DataOptions options;
  options.video_fps = 4;
  EXPECT_THAT(take_media_options_of_run(folder(), options),
              ElementsAre("data.image_max_pixels=12544", "data.video_layout=transformers5"));
  EXPECT_EQ(options.image_max_pixels, 12544);
  EXPECT_EQ(options.video_fps, 4);
  EXPECT_EQ(options.video_max_frames, 128);
  EXPECT_EQ(options.video_layout, data::VideoLayout::kTransformers5);
}

TEST_F(MediaOptionsOfRun, GivenByHandCountEvenWhereTheyAreTheDefaults) {
  put(kMediaSettingsFile, media_settings_text(trained()));
  data::DataOptions options;
  const auto given = read_media_settings({"data.video_fps=2", "data.volume.spacing=1"}, options);
  EXPECT_THAT(given.keys, ElementsAre("data.video_fps"));
  EXPECT_THAT(given.others, ElementsAre("data.volume.spacing=1"));
  take_media_options_of_run(folder(), options, given.keys);
  EXPECT_EQ(options.video_fps, 2);
  EXPECT_EQ(options.image_max_pixels, 12544);
  EXPECT_THAT(message_of([&] { read_media_settings({"data.video_fps=-1"}, options); }, ExitCode::kUsage),
              HasSubstr("data.video_fps"));
}

/// Checkpoints of runs before this file was written have them in the state of the run.
TEST_F(MediaOptionsOfRun, AreThoseOfTheStateOfTheRun) {
  std::filesystem::create_directories(folder() / "trainer_state");
  put("trainer_state/state.json",
      R"({"step": 1, "skipped_steps": 0, "cursor": {"lanes": [], "due": [], "batches": 0},
          "fingerprint": {"data.video_max_frames": "4", "data.mask_image_size": "auto", "data.max_length": "77"}})");
  data::DataOptions options;
  EXPECT_THAT(take_media_options_of_run(folder(), options),
              ElementsAre("data.video_max_frames=4", "data.max_length=77"));
  EXPECT_EQ(options.video_max_frames, 4);
  EXPECT_EQ(options.max_length, 77);
}

TEST_F(MediaOptionsOfRun, OfAFolderWithoutARunAreNone) {
  data::DataOptions options;
  EXPECT_THAT(take_media_options_of_run(folder(), options), IsEmpty());
  put(kMediaSettingsFile, "[1]");
  EXPECT_THAT(message_of([&] { media_settings_of_run(folder()); }),
              AllOf(HasSubstr(kMediaSettingsFile), HasSubstr("not a JSON object")));
}

}  // namespace
}  // namespace vlmtrain::train
