#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/idefics3/processor.h"
#include "models/internvl/processor.h"
#include "models/media/medium.h"
#include "models/qwen2_vl/video_processor.h"
#include "models/qwen3_vl/processor.h"
#include "parity/tiny_preset.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

image::VideoInfo make_frame_list(int64_t frames, double fps = 0) {
  return {.num_frames = frames, .fps = fps, .size = {10, 10}, .is_frame_list = true};
}

image::VideoInfo make_file_info(int64_t frames, double fps) {
  return {.num_frames = frames, .fps = fps, .size = {10, 10}};
}

/// As transformers with do_sample_frames=False.
TEST(ListedFrames, AreAllUsedByEachFamily) {
  const qwen2_vl::VisionConfig vision;
  for (const int64_t count : {1, 2, 3, 5, 10, 64}) {
    for (const double fps : {0.0, 1.0, 30.0}) {
      const auto frame_list = make_frame_list(count, fps);
      EXPECT_THAT(qwen2_vl::VideoSettings{}.select_frames(frame_list, 2, vision), SizeIs(count)) << count;
      EXPECT_THAT(qwen3_vl::VideoSettings{}.select_frames(frame_list, 2), SizeIs(count)) << count;
      EXPECT_THAT(
          (idefics3::VideoSettings{.frame_settings = {}, .fps = 1, .max_frames = 8}.sample_frame_indices(frame_list)),
          SizeIs(count));
      EXPECT_THAT((internvl::VideoSettings{.tile = {}, .num_frames = 4}.sample_frame_indices(frame_list)),
                  SizeIs(count))
          << count;
    }
  }
}

TEST(ListedFrames, AreSampledEvenlyIfTooMany) {
  qwen2_vl::VideoSettings qwen2_settings;
  qwen2_settings.limits.max_listed_frames = 4;
  EXPECT_THAT(qwen2_settings.select_frames(make_frame_list(16), 2, qwen2_vl::VisionConfig{}), ElementsAre(0, 4, 8, 12));
  EXPECT_THAT(qwen2_settings.select_frames(make_frame_list(16, 30), 2, qwen2_vl::VisionConfig{}),
              ElementsAre(0, 4, 8, 12))
      << "for any frame rate";
  qwen3_vl::VideoSettings qwen3_settings;
  qwen3_settings.limits.max_listed_frames = 4;
  EXPECT_THAT(qwen3_settings.select_frames(make_frame_list(16, 30), 2), ElementsAre(0, 5, 10, 15));
  EXPECT_THAT(
      (idefics3::VideoSettings{.frame_settings = {}, .max_listed_frames = 3}.sample_frame_indices(make_frame_list(9))),
      ElementsAre(0, 4, 8));
  EXPECT_THAT(
      (internvl::VideoSettings{.tile = {}, .num_frames = 8, .max_frames = 2}.sample_frame_indices(make_frame_list(8))),
      ElementsAre(2, 6));
}

TEST(ListedFrames, FramesOfAFileAreSampled) {
  EXPECT_THAT(qwen2_vl::VideoSettings{}.select_frames(make_file_info(10, 5), 2, qwen2_vl::VisionConfig{}), SizeIs(4));
  EXPECT_THAT(qwen3_vl::VideoSettings{}.select_frames(make_file_info(10, 5), 1), ElementsAre(0, 3, 6, 9));
}

/// num_frames of a processor file, as in transformers 5.24 (tests/models/data has further cases).
TEST(NumFrames, MatchTransformers) {
  qwen2_vl::VideoSettings qwen2_settings;
  qwen2_settings.limits.num_frames = 3;
  EXPECT_THAT(qwen2_settings.select_frames(make_file_info(10, 5), 2, qwen2_vl::VisionConfig{}), ElementsAre(0, 2, 5, 7))
      << "whole patches";
  qwen2_settings.limits.num_frames = 20;
  EXPECT_THAT(qwen2_settings.select_frames(make_file_info(10, 5), 2, qwen2_vl::VisionConfig{}), SizeIs(10))
      << "all frames, where the sampling ends";
  qwen3_vl::VideoSettings qwen3_settings;
  qwen3_settings.limits.num_frames = 3;
  EXPECT_THAT(qwen3_settings.select_frames(make_file_info(10, 5), 2), ElementsAre(0, 4, 9));
  qwen3_settings.limits.num_frames = 4;
  EXPECT_THAT(qwen3_settings.select_frames(make_file_info(2, 5), 2), ElementsAre(0, 0, 1, 1));
}

TEST(NumFrames, WithFpsRefuseVideosOnly) {
  const auto read_limits = [](const json& file, bool has_fps) {
    return qwen2_vl::read_frame_limits(PreprocessorConfig(file, "video_preprocessor_config.json"),
                                       {.max_video_tokens = 9}, qwen2_vl::VisionConfig{}, has_fps);
  };
  EXPECT_FALSE(read_limits({{"num_frames", 3}}, /*has_fps=*/false).has_fps_conflict);
  EXPECT_FALSE(read_limits({{"num_frames", 3}, {"fps", nullptr}}, /*has_fps=*/true).has_fps_conflict);
  EXPECT_TRUE(read_limits({{"num_frames", 3}}, /*has_fps=*/true).has_fps_conflict) << "the class has its own fps";
  EXPECT_TRUE(read_limits({{"num_frames", 3}, {"fps", 1}}, /*has_fps=*/false).has_fps_conflict);
  EXPECT_FALSE(read_limits({{"fps", 1}}, /*has_fps=*/true).has_fps_conflict);
  qwen3_vl::VideoSettings videos;
  videos.limits = read_limits({{"num_frames", 3}}, /*has_fps=*/true);
  EXPECT_THAT(get_error_message([&] { videos.select_frames(make_file_info(10, 5), 2); }),
              AllOf(HasSubstr("num_frames (3)"), HasSubstr("null")));
  EXPECT_THAT(videos.select_frames(make_frame_list(10), 2), SizeIs(10)) << "which are not sampled";
}

/// Records of the families that support videos, with videos given as lists of frames.
class FamilyListedFrames : public testing::TestWithParam<const char*> {};

TEST_P(FamilyListedFrames, AreUsedAndSkippedFramesAreNoticed) {
  const parity::TinyPreset preset(GetParam());
  const auto records = preset.records();
  auto record = *std::ranges::find(records, "video", &io::Record::id);
  io::MediaRef& video = record.videos.front();
  for (int i = 0; i < 6; ++i) video.frames.emplace_back(std::filesystem::path(video.path) / fmt::format("{}.png", i));
  const auto sample = load_processor(preset.checkpoint(), {})->process(record, 0);
  EXPECT_EQ(sample.video_frames, 6);
  EXPECT_THAT(sample.notices, IsEmpty());
  ProcessorSettings settings;
  settings.video_max_frames = 4;
  const auto processor = load_processor(preset.checkpoint(), settings);
  for (const auto& limited_sample : {processor->process(record, 0), processor->process_headers(record, 0)}) {
    EXPECT_EQ(limited_sample.video_frames, 4);
    EXPECT_THAT(
        limited_sample.notices,
        ElementsAre(testing::Field(&io::Notice::example, AllOf(HasSubstr("4 of 6 frames"), HasSubstr("ball")))));
  }
}

/// The model normalizes images and frames equally, so a file with different values is refused only
/// for videos.
TEST_P(FamilyListedFrames, WithOtherNormalizationAreRefused) {
  const parity::TinyPreset preset(GetParam());
  const auto file = preset.checkpoint() / "video_preprocessor_config.json";
  auto settings =
      io::read_json(std::filesystem::exists(file) ? file : preset.checkpoint() / "preprocessor_config.json");
  settings.erase("image_processor_type");
  settings["image_std"] = {0.3, 0.3, 0.3};
  io::write_file(file, settings.dump());
  const auto records = preset.records();
  const auto processor = load_processor(preset.checkpoint(), {});
  for (const auto& record : records) {
    const auto make_sample = [&] { data::make_sample(*processor, record, 0); };
    if (record.videos.empty()) {
      EXPECT_NO_THROW(make_sample()) << record.id;
    } else {
      EXPECT_THAT(get_error_message(make_sample), AllOf(HasSubstr("image_std"), HasSubstr("ball")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, FamilyListedFrames,
                         testing::Values("qwen2.5-vl-tiny", "qwen3-vl-tiny", "smolvlm2-tiny", "internvl3-tiny"),
                         [](const auto& instance) { return parity::TinyPreset::make_test_name(instance.param); });

}  // namespace
}  // namespace vlmtrain::models
