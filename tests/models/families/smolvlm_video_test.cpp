#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/idefics3/processor.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models::idefics3 {
namespace {

using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Returns results of transformers and num2words
/// (tests/parity/reference/modules/smolvlm_layouts.py).
const json& read_reference() {
  static const json content =
      io::read_json(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/models/data/smolvlm_videos.json");
  return content;
}

TEST(SmolVlmVideos, MatchFramesOfTransformers) {
  for (const json& entry : read_reference().at("frames")) {
    const json& video = entry.at("video");
    const VideoSettings settings{.frame_settings = {}, .fps = video.at(2), .max_frames = video.at(3)};
    const image::VideoInfo info{.num_frames = video.at(0), .fps = video.at(1), .size = {10, 10}};
    EXPECT_EQ(settings.sample_frame_indices(info), entry.at("indices")) << video;
  }
}

TEST(SmolVlmVideos, UseFallbackFpsIfFpsIsUnknown) {
  const VideoSettings settings{.frame_settings = {}, .fps = 1, .max_frames = 64, .fallback_fps = 2};
  EXPECT_THAT(settings.sample_frame_indices({.num_frames = 6, .fps = 0, .size = {10, 10}}), ElementsAre(0, 2, 5));
}

TEST(SmolVlmVideoText, SpellsNumbers) {
  for (const json& entry : read_reference().at("numbers")) EXPECT_EQ(spell_number(entry.at(0)), entry.at(1));
}

TEST(SmolVlmVideoText, HasDurationAndTimestamps) {
  const std::vector<double> seconds{0, 61.9, 3725.4};
  const std::string frame_text = "<fake_token_around_image><global-img><image><fake_token_around_image>";
  EXPECT_EQ(
      format_video_text(seconds, 3727.5, 1),
      "You are provided the following series of three frames from a 1:02:07 [H:MM:SS] video.\n\nFrame from 00:00:" +
          frame_text + "\nFrame from 01:01:" + frame_text + "\nFrame from 62:05:" + frame_text + "\n\n");
  EXPECT_THAT(format_video_text(seconds, 90'061, 1), HasSubstr("a 1 day, 1:01:01 [H:MM:SS] video"));
}

/// Copy of a SmolVLM2 checkpoint whose files a test edits.
class SmolVlmVideoCheckpoint : public testing::Test {
 protected:
  CheckpointCopy copy_{"smolvlm_video"};
};

TEST_F(SmolVlmVideoCheckpoint, UsesSamplingOfCheckpointAndRun) {
  const auto settings = [&](double fps, int64_t frames) {
    ProcessorSettings processor_settings;
    processor_settings.video_fps = fps;
    processor_settings.video_max_frames = frames;
    return VideoSettings::find(copy_.path(), 32, processor_settings).value();
  };
  EXPECT_EQ(settings(2, 128).fps, 1);
  EXPECT_EQ(settings(0.5, 128).fps, 0.5);
  EXPECT_EQ(settings(2, 128).max_frames, 2);
  EXPECT_EQ(settings(2, 1).max_frames, 1);
}

TEST_F(SmolVlmVideoCheckpoint, WithoutSamplingRefusesVideos) {
  const SyntheticSample sample{.images = 0, .video_frames = 4};
  EXPECT_EQ(compute_sample_shape(copy_.path(), sample).num_videos, 1);
  copy_.edit("preprocessor_config.json", [](json& file) { file.erase("video_sampling"); });
  EXPECT_FALSE(VideoSettings::find(copy_.path(), 32, {}).has_value());
  EXPECT_THAT(get_error_message([&] { compute_sample_shape(copy_.path(), sample); }, ExitCode::kUsage),
              AllOf(HasSubstr("supports no videos"), HasSubstr("video_sampling"), HasSubstr("SmolVLM2")));
  const auto records = copy_.origin().records();
  EXPECT_THROW(data::make_sample(*load_processor(copy_.path(), {}), records.at(0), 0), data::SampleError);
}

TEST_F(SmolVlmVideoCheckpoint, FramesThatAreNotTilesAreRefused) {
  json video_config = io::read_json(copy_.path() / "preprocessor_config.json");
  video_config.erase("image_processor_type");
  video_config["max_image_size"] = {{"longest_edge", 64}};
  io::write_file(copy_.path() / "video_preprocessor_config.json", video_config.dump());
  EXPECT_THAT(get_error_message([&] { load_processor(copy_.path(), {}); }),
              AllOf(HasSubstr("video_preprocessor_config.json"), HasSubstr("64"), HasSubstr("image_size")));
}

TEST_F(SmolVlmVideoCheckpoint, CountsVideoTokensWithTokenizer) {
  const auto records = copy_.origin().records();
  const auto processor = load_processor(copy_.path(), {});
  const auto sample = data::make_sample(*processor, records.at(0), 0);
  // "ball" has 10 frames at two per second.
  const SyntheticSample synthetic_sample{
      .images = 0, .video_frames = 10, .video_fps = 2, .text_tokens = 10, .label_tokens = 5};
  const auto shape = compute_sample_shape(copy_.path(), synthetic_sample);
  EXPECT_EQ(shape.image_tokens, std::ssize(sample.image_token_positions));
  EXPECT_EQ(shape.pixel_rows, sample.pixel_values.size(0));
}

}  // namespace
}  // namespace vlmtrain::models::idefics3
