#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/families/gemma4_checkpoint.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::gemma4 {
namespace {

using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void read_settings(const Checkpoint& checkpoint) {
  read_image_settings(checkpoint.path(), checkpoint.config().patches, std::nullopt);
  VideoSettings::read(checkpoint.path(), checkpoint.config().patches, {});
}

std::string get_settings_error(const Checkpoint& checkpoint) {
  return get_error_message([&] { read_settings(checkpoint); }, ExitCode::kBadData);
}

TEST(Gemma4Settings, AreThoseOfPublishedFiles) {
  const Checkpoint checkpoint;
  const json pixels{{"do_convert_rgb", true},
                    {"do_rescale", true},
                    {"do_resize", true},
                    {"image_mean", {0.0, 0.0, 0.0}},
                    {"image_std", {1.0, 1.0, 1.0}},
                    {"patch_size", 16},
                    {"pooling_kernel_size", 3},
                    {"resample", 3},
                    {"rescale_factor", 0.00392156862745098}};
  checkpoint.edit("image_processor", pixels);
  checkpoint.edit("image_processor", {{"do_normalize", false}, {"image_seq_length", 280}, {"max_soft_tokens", 280}});
  checkpoint.edit("video_processor", pixels);
  checkpoint.edit("video_processor", {{"do_normalize", true},
                                      {"do_sample_frames", true},
                                      {"max_soft_tokens", 70},
                                      {"num_frames", 32},
                                      {"return_metadata", false}});
  const auto images = read_image_settings(checkpoint.path(), {}, std::nullopt);
  EXPECT_EQ(images.max_tokens, 280);
  EXPECT_EQ(images.filter, image::ResampleFilter::kBicubic);
  const auto videos = VideoSettings::read(checkpoint.path(), {}, {});
  EXPECT_EQ(videos.pixels.max_tokens, 70);
  EXPECT_EQ(videos.num_frames, 32);
  EXPECT_FALSE(videos.has_fps_conflict);
}

TEST(Gemma4Settings, MissingSettingsHaveTransformersDefaults) {
  const Checkpoint checkpoint;
  checkpoint.edit("image_processor", {{"max_soft_tokens", 560}, {"resample", 2}});
  checkpoint.write(
      "processor_config.json",
      json{{"image_processor", io::read_json(checkpoint.path() / "processor_config.json")["image_processor"]}}.dump());
  EXPECT_EQ(read_image_settings(checkpoint.path(), {}, std::nullopt).max_tokens, 560);
  const auto videos = VideoSettings::read(checkpoint.path(), {}, {});
  EXPECT_EQ(videos.pixels.max_tokens, 70) << "the settings of images do not apply";
  EXPECT_EQ(videos.pixels.filter, image::ResampleFilter::kBicubic);
  EXPECT_EQ(videos.num_frames, 32);
  checkpoint.write("video_preprocessor_config.json", R"({"max_soft_tokens": 140, "num_frames": null, "fps": 1})");
  const auto file_settings = VideoSettings::read(checkpoint.path(), {}, {});
  EXPECT_EQ(file_settings.pixels.max_tokens, 140);
  EXPECT_EQ(file_settings.num_frames, std::nullopt);
}

TEST(Gemma4Settings, UnsupportedOnesAreRefused) {
  const std::vector<std::pair<json, std::string>> changes{
      {{{"do_resize", false}}, "do_resize"},
      {{{"do_rescale", false}}, "do_rescale"},
      {{{"rescale_factor", 0.0078125}}, "rescale_factor is 0.0078125"},
      {{{"do_normalize", true}, {"image_mean", {0.5, 0.5, 0.5}}}, "image_mean is [0.5, 0.5, 0.5]"},
      {{{"image_std", {0.5, 0.5, 0.5}}}, "set do_normalize to false"},
      {{{"patch_size", 14}}, "patch_size is 14, but config.json's vision_config has 16"},
      {{{"pooling_kernel_size", 2}}, "pooling_kernel_size is 2, but config.json's vision_config has 3"},
      {{{"max_soft_tokens", 256}}, "max_soft_tokens is 256; supported: 70, 140, 280, 560, 1120"},
      {{{"max_soft_tokens", "many"}}, "max_soft_tokens is \"many\""},
      {{{"size", {{"height", 224}, {"width", 224}}}}, "size is"},
      {{{"resample", 0}}, "resample is 0"},
      {{{"do_center_crop", true}}, "do_center_crop"},
  };
  for (const char* section : {"image_processor", "video_processor"}) {
    for (const auto& [change, expected_message] : changes) {
      const Checkpoint checkpoint;
      checkpoint.edit(section, change);
      EXPECT_THAT(
          get_settings_error(checkpoint),
          AllOf(HasSubstr("processor_config.json (" + std::string(section) + ")"), HasSubstr(expected_message)));
    }
  }
  const Checkpoint checkpoint;
  checkpoint.edit("image_processor", {{"do_normalize", false}, {"image_std", {0.5, 0.5, 0.5}}});
  EXPECT_NO_THROW(read_settings(checkpoint));
  checkpoint.edit("video_processor", {{"num_frames", 0}});
  EXPECT_THAT(get_settings_error(checkpoint), HasSubstr("num_frames is 0"));
}

TEST(Gemma4Settings, ProcessorsOfOtherModelsAreRefused) {
  const Checkpoint checkpoint, unified(/*merges_patches=*/true);
  unified.edit("video_processor", {{"video_processor_type", "Gemma4VideoProcessor"}});
  EXPECT_THAT(get_settings_error(unified),
              AllOf(HasSubstr("Gemma4VideoProcessor"), HasSubstr("Gemma4UnifiedVideoProcessor")));
  unified.edit("image_processor", {{"image_processor_type", "Gemma4ImageProcessor"}});
  EXPECT_THAT(get_settings_error(unified),
              AllOf(HasSubstr("Gemma4ImageProcessor"), HasSubstr("Gemma4UnifiedImageProcessor")));
  checkpoint.edit("image_processor", {{"image_processor_type", "Gemma3ImageProcessor"}});
  EXPECT_THAT(get_settings_error(checkpoint), HasSubstr("image_processor_type is Gemma3ImageProcessor"));
  std::filesystem::remove(checkpoint.path() / "processor_config.json");
  EXPECT_THAT(get_settings_error(checkpoint), HasSubstr("has neither preprocessor_config.json"));
}

TEST(Gemma4Settings, FrameRateAndNumberConflictOnlyForVideoFiles) {
  const Checkpoint checkpoint;
  checkpoint.edit("video_processor", {{"fps", 1}});
  const auto videos = VideoSettings::read(checkpoint.path(), {}, {});
  EXPECT_THAT(get_error_message([&] { reject_fps_conflict(videos); }, ExitCode::kBadData),
              AllOf(HasSubstr("processor_config.json (video_processor)"), HasSubstr("both num_frames (32) and fps")));
  EXPECT_THAT(videos.select_frames({.num_frames = 2, .fps = 0, .size = {10, 10}, .is_frame_list = true}),
              ElementsAre(0, 1));
}

TEST(Gemma4Settings, MaxPixelsLowerTheBudget) {
  const PatchShape shape;
  const auto limit = [&](int64_t max_tokens, int64_t max_pixels) {
    return limit_token_budget(max_tokens, max_pixels, shape);
  };
  EXPECT_EQ(limit(1120, 1120 * 48 * 48), 1120);
  EXPECT_EQ(limit(1120, 1120 * 48 * 48 - 1), 560);
  EXPECT_EQ(limit(280, 1120 * 48 * 48), 280);
  EXPECT_EQ(limit(280, 70 * 48 * 48), 70);
  EXPECT_EQ(limit_token_budget(560, std::nullopt, shape), 560);
  const Checkpoint checkpoint;
  ProcessorSettings settings;
  settings.image_max_pixels = 70 * 48 * 48 - 1;
  EXPECT_THAT(get_error_message([&] { checkpoint.load_processor(settings); }, ExitCode::kUsage),
              AllOf(HasSubstr("data.image_max_pixels is 161279"), HasSubstr("161280 pixels"), HasSubstr("70 tokens")));
}

TEST(Gemma4Settings, TokensOfAnotherTokenizerAreRefused) {
  const auto get_error = [](const Checkpoint& checkpoint) {
    return get_error_message([&] { checkpoint.load_processor(); }, ExitCode::kBadData);
  };
  const std::vector<std::pair<int64_t MediaTokenIds::*, std::string>> ids{{&MediaTokenIds::image, "image_token_id"},
                                                                          {&MediaTokenIds::video, "video_token_id"},
                                                                          {&MediaTokenIds::image_start, "boi_token_id"},
                                                                          {&MediaTokenIds::image_end, "eoi_token_id"}};
  for (const auto& [id, key] : ids) {
    for (const int64_t other_id : {700, 300}) {
      Checkpoint checkpoint;
      checkpoint.config().tokens.*id = other_id;
      EXPECT_THAT(get_error(checkpoint),
                  AllOf(HasSubstr(key + " is " + std::to_string(other_id)), HasSubstr("tokenizer.json")));
    }
  }
  Checkpoint checkpoint;
  checkpoint.config().vocab_size = 605;
  EXPECT_THAT(get_error(checkpoint), HasSubstr("has 606 tokens, more than vocab_size 605"));
}

/// The saved files, read without the run's limits, give the run's settings.
TEST(Gemma4Overrides, StoreLimitsOfTheRun) {
  const Checkpoint checkpoint;
  const auto apply = [&](const ProcessorSettings& settings, bool has_videos) {
    const auto overrides = make_processor_overrides({}, checkpoint.path(), settings, has_videos);
    auto file = io::read_ordered_json(checkpoint.path() / "processor_config.json");
    if (overrides.edit_image_settings) overrides.edit_image_settings(file["image_processor"]);
    if (overrides.edit_video_settings) overrides.edit_video_settings(file["video_processor"]);
    checkpoint.write("processor_config.json", file.dump());
    return overrides;
  };
  const std::string unchanged_file = io::read_ordered_json(checkpoint.path() / "processor_config.json").dump();
  apply({}, /*has_videos=*/false);
  EXPECT_EQ(io::read_ordered_json(checkpoint.path() / "processor_config.json").dump(), unchanged_file);

  ProcessorSettings settings;
  settings.image_max_pixels = 150 * 48 * 48;
  settings.video_max_frames = 6;
  const auto overrides = apply(settings, /*has_videos=*/true);
  EXPECT_TRUE(overrides.creates_video_config);
  EXPECT_EQ(overrides.video_processor_type, "Gemma4VideoProcessor");
  EXPECT_THAT(overrides.unsaved_settings, IsEmpty());
  EXPECT_EQ(read_image_settings(checkpoint.path(), {}, std::nullopt).max_tokens, 140);
  auto videos = VideoSettings::read(checkpoint.path(), {}, {});
  EXPECT_EQ(videos.pixels.max_tokens, 70);
  EXPECT_EQ(videos.num_frames, 6);

  json file = io::read_json(checkpoint.path() / "processor_config.json");
  file["video_processor"]["num_frames"] = nullptr;
  checkpoint.write("processor_config.json", file.dump());
  settings.video_fps = 0.5;
  EXPECT_THAT(apply(settings, /*has_videos=*/true).unsaved_settings,
              ElementsAre(AllOf(HasSubstr("data.video_max_frames=6"), HasSubstr("Gemma4VideoProcessor"))));
  file = io::read_json(checkpoint.path() / "processor_config.json");
  EXPECT_EQ(file["video_processor"]["fps"], 0.5);
  EXPECT_TRUE(file["video_processor"]["num_frames"].is_null());
}

}  // namespace
}  // namespace vlmtrain::models::gemma4
