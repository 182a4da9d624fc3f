#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/qwen3_vl/config.h"
#include "models/qwen3_vl/position_taps.h"
#include "models/qwen3_vl/video_processor.h"
#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/hypothetical_sample.h"

namespace vlmtrain::models::qwen3_vl {
namespace {

using io::message_of;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// What transformers computes (tests/parity/reference/make_qwen3_layouts.py).
json of_transformers(const char* part) {
  return io::read_json(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/models/data/qwen3_vl.json").at(part);
}

TEST(PositionTaps, AreThoseOfTransformers) {
  for (const json& entry : of_transformers("taps")) {
    std::vector<data::PatchGrid> grids;
    for (const json& grid : entry.at("grids")) grids.push_back({grid.at(0), grid.at(1), grid.at(2)});
    const auto taps = PositionTaps::of(grids, entry.at("side"), entry.at("merge"));
    const json& entries = entry.at("entries");
    ASSERT_EQ(taps.entries.size(), kTaps * entries.size());
    for (size_t patch = 0; patch < entries.size(); ++patch) {
      for (size_t tap = 0; tap < kTaps; ++tap) {
        const size_t place = tap * entries.size() + patch;
        EXPECT_EQ(taps.entries[place], entries[patch][tap]) << entry.at("grids") << ", patch " << patch;
        EXPECT_EQ(taps.weights[place], entry["weights"][patch][tap].get<float>()) << patch;
      }
    }
  }
}

TEST(Qwen3VideoSettings, ResizeFramesAsTransformers) {
  const VisionConfig vision = [] {
    VisionConfig config;
    config.patch_size = 16;
    return config;
  }();
  for (const json& entry : of_transformers("sizes")) {
    VideoSettings settings;
    settings.pixels.budget = {entry.at(3), entry.at(4)};
    settings.limits.cap_pixels_per_frame = !entry.at(5).is_null();
    if (settings.limits.cap_pixels_per_frame) settings.limits.max_video_tokens = entry.at(5);
    const image::ImageSize given{entry.at(1), entry.at(2)};
    if (entry.at(6).is_null()) {
      EXPECT_THROW(settings.frame_size(entry.at(0), given, std::nullopt, vision), UserError) << entry;
      continue;
    }
    const auto found = settings.frame_size(entry.at(0), given, std::nullopt, vision);
    EXPECT_EQ(found.height, entry.at(6)) << entry;
    EXPECT_EQ(found.width, entry.at(7)) << entry;
  }
}

TEST(Qwen3VideoSettings, LimitEachFrame) {
  VisionConfig vision;
  vision.patch_size = 16;
  VideoSettings settings;
  settings.pixels.budget = {4096, 25165824};
  const image::ImageSize frame{480, 640};
  const auto limited = settings.frame_size(8, frame, 64 * 1024, vision);
  EXPECT_LE(limited.height * limited.width, 64 * 1024);
  settings.most_of_a_frame = 64 * 1024;
  const auto by_settings = settings.frame_size(8, frame, std::nullopt, vision);
  EXPECT_EQ(by_settings.height, limited.height);
  EXPECT_EQ(by_settings.width, limited.width);
}

TEST(Qwen3VideoSettings, TakeTheFramesAndWriteTheTimesOfTransformers) {
  for (const json& entry : of_transformers("frames")) {
    const json& video = entry.at("video");
    VideoSettings settings;
    settings.limits.min_frames = video.at(3);
    settings.limits.max_frames = video.at(4);
    const auto taken = settings.sample(video.at(0), video.at(1), video.at(2));
    EXPECT_EQ(taken, entry.at("indices")) << video;
    EXPECT_EQ(time_stamps(taken, video.at(1), 2), entry.at("stamps")) << video;
  }
}

TEST(Qwen3VlConfig, NamesWhatIsNotFollowed) {
  const std::vector<std::pair<json, std::string>> changes{
      {{{"text_config", {{"rope_scaling", {{"mrope_section", {5, 4, 4}}}}}}}, "mrope_section [5, 4, 4]"},
      {{{"text_config", {{"rope_scaling", {{"mrope_section", {2, 5, 5}}}}}}}, "every third of 12 pairs"},
      {{{"text_config", {{"rope_scaling", {{"mrope_interleaved", false}}}}}}, "mrope_interleaved"},
      {{{"text_config", {{"num_experts", 128}}}}, "mixture of experts"},
      {{{"text_config", {{"hidden_act", "gelu"}}}}, "hidden_act gelu"},
      {{{"text_config", {{"hidden_size", 48}}}}, "out_hidden_size is 32"},
      {{{"text_config", nullptr}}, "out_hidden_size is 32"},
      {{{"vision_config", {{"num_position_embeddings", 35}}}}, "num_position_embeddings 35"},
      {{{"vision_config", {{"deepstack_visual_indexes", {2, 0}}}}}, "deepstack_visual_indexes [2, 0]"},
      {{{"vision_config", {{"deepstack_visual_indexes", {0, 4}}}}}, "deepstack_visual_indexes [0, 4]"},
      {{{"vision_config", {{"deepstack_visual_indexes", {0, 1, 2, 3}}}}}, "only 3"},
      {{{"vision_config", {{"deepstack_visual_indexes", "all"}}}}, "deepstack_visual_indexes"},
      {{{"vision_config", {{"num_heads", 5}}}}, "5 heads"},
      {{{"image_token_id", 100'000}}, "image_token_id 100000"},
      {{{"model_type", "qwen3_vl_moe"}}, "mixture of experts"},
  };
  for (const auto& [change, complaint] : changes) {
    const CheckpointCopy copy("qwen3_vl_images");
    copy.edit("config.json", [&](auto& config) { config.merge_patch(change); });
    EXPECT_THAT(message_of([&] { build_model(copy.path(), at::kMeta, at::kFloat); }, ExitCode::kBadData),
                AllOf(HasSubstr("config.json"), HasSubstr(complaint)));
  }
}

TEST(Qwen3VlProcessor, NamesFilesOfAnotherFamily) {
  const CheckpointCopy copy("qwen3_vl_mixed");
  const auto complaint = [&] { return message_of([&] { load_processor(copy.path(), {}); }, ExitCode::kBadData); };
  copy.edit("video_preprocessor_config.json",
            [](auto& settings) { settings["video_processor_type"] = "Qwen2VLVideoProcessor"; });
  EXPECT_THAT(complaint(), AllOf(HasSubstr("video_preprocessor_config.json"), HasSubstr("Qwen2VLVideoProcessor"),
                                 HasSubstr("Qwen3VLVideoProcessor")));
  copy.edit("preprocessor_config.json",
            [](auto& settings) { settings["image_processor_type"] = "CLIPImageProcessor"; });
  EXPECT_THAT(complaint(), AllOf(HasSubstr("preprocessor_config.json"), HasSubstr("CLIPImageProcessor")));
}

TEST(Qwen3VlProcessor, VideosAreNotThoseOfQwen2) {
  const CheckpointCopy copy("qwen2_5_vl_video");
  std::filesystem::remove(copy.path() / "processor_config.json");
  for (const char* name : {"preprocessor_config.json", "video_preprocessor_config.json"}) {
    std::filesystem::copy_file(parity::Case("qwen3_vl_mixed").checkpoint() / name, copy.path() / name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  EXPECT_THAT(message_of([&] { load_processor(copy.path(), {}); }, ExitCode::kBadData),
              AllOf(HasSubstr("video_preprocessor_config.json"), HasSubstr("Qwen3VLVideoProcessor")));
}

/// Text around the frames is counted as the sample has it, in both layouts.
TEST(Qwen3VlShape, IsThatOfTheSample) {
  for (const auto layout : {data::VideoLayout::kReleased, data::VideoLayout::kTransformers5}) {
    const parity::Case origin("qwen3_vl_video");
    auto settings = origin.processor_settings();
    settings.video_layout = layout;
    const auto processor = load_processor(origin.checkpoint(), settings);
    const auto record = origin.records().front();
    const auto outline = processor->outline(record, 0);
    const auto sample = processor->process(record, 0);
    EXPECT_EQ(data::shape_of(outline), data::shape_of(sample));
    EXPECT_EQ(outline.position_ids, sample.position_ids);

    io::Record without = record;
    without.videos.clear();
    without.turns.front().text = without.turns.front().text.substr(std::string("<video>\n").size());
    const int64_t text = processor->outline(without, 0).tokens();
    const auto shape = shape_of(origin.checkpoint(), {.images = 0,
                                                      .video_frames = 10,
                                                      .video_width = 40,
                                                      .video_height = 27,
                                                      .text_tokens = text,
                                                      .label_tokens = 1,
                                                      .video_layout = layout});
    EXPECT_EQ(shape.tokens, sample.tokens());
    EXPECT_EQ(shape.grids, sample.grids);
  }
}

TEST(Qwen3VlShape, CountsTimeStampsWithoutATokenizer) {
  const parity::TemporaryFolder folder;
  write_preset_config("qwen3-vl-4b", folder.path());
  // 4 of 16 frames at 4 a second, 640 x 480: <0.6 seconds> … of 6 tokens, and the marks.
  const auto shape = shape_of(folder.path(), {.images = 0,
                                              .video_frames = 16,
                                              .video_fps = 4,
                                              .video_width = 640,
                                              .video_height = 480,
                                              .text_tokens = 256,
                                              .wanted_fps = 1});
  EXPECT_EQ(shape.video_frames, 4);
  EXPECT_EQ(shape.image_tokens, 2 * 15 * 20);
  EXPECT_EQ(shape.tokens, 256 + shape.image_tokens + 2 * (6 + 2));
}

}  // namespace
}  // namespace vlmtrain::models::qwen3_vl
