#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/qwen3_vl/model.h"
#include "models/qwen3_vl/processor.h"
#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models::qwen3_vl {
namespace {

using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Returns results of transformers (tests/parity/reference/modules/qwen3_layouts.py).
json read_reference(const char* section) {
  return io::read_json(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/models/data/qwen3_vl.json").at(section);
}

TEST(PositionInterpolation, MatchesTransformers) {
  for (const json& entry : read_reference("taps")) {
    std::vector<data::PatchGrid> grids;
    for (const json& grid : entry.at("grids")) grids.push_back({grid.at(0), grid.at(1), grid.at(2)});
    const auto interpolation = PositionInterpolation::make(grids, entry.at("side"), entry.at("merge"));
    const json& expected_indices = entry.at("entries");
    ASSERT_EQ(interpolation.indices.size(), kNumInterpolationPoints * expected_indices.size());
    for (size_t patch = 0; patch < expected_indices.size(); ++patch) {
      for (size_t point = 0; point < kNumInterpolationPoints; ++point) {
        const size_t slot = point * expected_indices.size() + patch;
        EXPECT_EQ(interpolation.indices[slot], expected_indices[patch][point])
            << entry.at("grids") << ", patch " << patch;
        EXPECT_EQ(interpolation.weights[slot], entry["weights"][patch][point].get<float>()) << patch;
      }
    }
  }
}

TEST(Qwen3VideoSettings, ResizeFramesLikeTransformers) {
  const VisionConfig vision = [] {
    VisionConfig config;
    config.patch_size = 16;
    return config;
  }();
  for (const json& entry : read_reference("sizes")) {
    VideoSettings settings;
    settings.pixels.budget = {entry.at(3), entry.at(4)};
    settings.limits.limits_pixels_per_frame = !entry.at(5).is_null();
    if (settings.limits.limits_pixels_per_frame) settings.limits.max_video_tokens = entry.at(5);
    const image::ImageSize compute_frame_size{entry.at(1), entry.at(2)};
    if (entry.at(6).is_null()) {
      EXPECT_THROW(settings.compute_frame_size(entry.at(0), compute_frame_size, std::nullopt, vision), UserError)
          << entry;
      continue;
    }
    const auto actual_size = settings.compute_frame_size(entry.at(0), compute_frame_size, std::nullopt, vision);
    EXPECT_EQ(actual_size.height, entry.at(6)) << entry;
    EXPECT_EQ(actual_size.width, entry.at(7)) << entry;
  }
}

TEST(Qwen3VideoSettings, LimitEachFrame) {
  VisionConfig vision;
  vision.patch_size = 16;
  VideoSettings settings;
  settings.pixels.budget = {4096, 25165824};
  const image::ImageSize frame{480, 640};
  const auto limited_size = settings.compute_frame_size(8, frame, 64 * 1024, vision);
  EXPECT_LE(limited_size.height * limited_size.width, 64 * 1024);
  settings.max_frame_pixels = 64 * 1024;
  const auto capped_size = settings.compute_frame_size(8, frame, std::nullopt, vision);
  EXPECT_EQ(capped_size.height, limited_size.height);
  EXPECT_EQ(capped_size.width, limited_size.width);
}

TEST(Qwen3VideoSettings, MatchFramesAndTimestampsOfTransformers) {
  for (const json& entry : read_reference("frames")) {
    const json& video = entry.at("video");
    VideoSettings settings;
    settings.limits.min_frames = video.at(3);
    settings.limits.max_frames = video.at(4);
    const auto frame_indices = settings.sample_frame_indices(video.at(0), video.at(1), video.at(2));
    EXPECT_EQ(frame_indices, entry.at("indices")) << video;
    EXPECT_EQ(make_timestamps(frame_indices, video.at(1), 2), entry.at("stamps")) << video;
  }
}

TEST(Qwen3VlConfig, UnsupportedKeysAreRefused) {
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
  for (const auto& [change, expected_message] : changes) {
    const CheckpointCopy copy("qwen3_vl_images");
    copy.edit("config.json", [&](auto& config) { config.merge_patch(change); });
    EXPECT_THAT(get_error_message([&] { build_model(copy.path(), at::kMeta, at::kFloat); }, ExitCode::kBadData),
                AllOf(HasSubstr("config.json"), HasSubstr(expected_message)));
  }
}

TEST(Qwen3VlProcessor, FilesOfAnotherFamilyAreRefused) {
  const CheckpointCopy copy("qwen3_vl_mixed");
  const auto get_error = [&] {
    return get_error_message([&] { load_processor(copy.path(), {}); }, ExitCode::kBadData);
  };
  copy.edit("video_preprocessor_config.json",
            [](auto& settings) { settings["video_processor_type"] = "Qwen2VLVideoProcessor"; });
  EXPECT_THAT(get_error(), AllOf(HasSubstr("video_preprocessor_config.json"), HasSubstr("Qwen2VLVideoProcessor"),
                                 HasSubstr("Qwen3VLVideoProcessor")));
  copy.edit("preprocessor_config.json",
            [](auto& settings) { settings["image_processor_type"] = "CLIPImageProcessor"; });
  EXPECT_THAT(get_error(), AllOf(HasSubstr("preprocessor_config.json"), HasSubstr("CLIPImageProcessor")));
}

TEST(Qwen3VlProcessor, VideoSettingsDifferFromQwen2) {
  const CheckpointCopy copy("qwen2_5_vl_video");
  std::filesystem::remove(copy.path() / "processor_config.json");
  for (const char* name : {"preprocessor_config.json", "video_preprocessor_config.json"}) {
    std::filesystem::copy_file(parity::Case("qwen3_vl_mixed").checkpoint() / name, copy.path() / name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  EXPECT_THAT(get_error_message([&] { load_processor(copy.path(), {}); }, ExitCode::kBadData),
              AllOf(HasSubstr("video_preprocessor_config.json"), HasSubstr("Qwen3VLVideoProcessor")));
}

/// Text between the frames is counted as in the sample, in both layouts.
TEST(Qwen3VlShape, MatchesSample) {
  for (const auto layout : {data::VideoTokenLayout::kReleasedCode, data::VideoTokenLayout::kTransformers5}) {
    const parity::Case origin("qwen3_vl_video");
    auto settings = origin.processor_settings();
    settings.video_layout = layout;
    const auto processor = load_processor(origin.checkpoint(), settings);
    const auto record = origin.records().front();
    const auto outline = processor->process_headers(record, 0);
    const auto sample = processor->process(record, 0);
    EXPECT_EQ(data::get_sample_shape(outline), data::get_sample_shape(sample));
    EXPECT_EQ(outline.position_ids, sample.position_ids);

    io::Record text_only = record;
    text_only.videos.clear();
    text_only.turns.front().text = text_only.turns.front().text.substr(std::string("<video>\n").size());
    const int64_t text = processor->process_headers(text_only, 0).tokens();
    const auto shape = compute_sample_shape(origin.checkpoint(), {.images = 0,
                                                                  .video_frames = 10,
                                                                  .video_width = 40,
                                                                  .video_height = 27,
                                                                  .text_tokens = text,
                                                                  .label_tokens = 1,
                                                                  .video_layout = layout});
    EXPECT_EQ(shape.tokens, sample.tokens());
    EXPECT_EQ(shape.patch_grids, sample.patch_grids);
  }
}

TEST(Qwen3VlShape, CountsTimestampsWithoutATokenizer) {
  const parity::TemporaryFolder folder;
  write_preset_config("qwen3-vl-4b", folder.path());
  // 4 of 16 frames at 4 per second, 640 x 480: <0.6 seconds> … of 6 tokens, and the markers.
  const auto shape = compute_sample_shape(folder.path(), {.images = 0,
                                                          .video_frames = 16,
                                                          .video_fps = 4,
                                                          .video_width = 640,
                                                          .video_height = 480,
                                                          .text_tokens = 256,
                                                          .sampling_fps = 1});
  EXPECT_EQ(shape.video_frames, 4);
  EXPECT_EQ(shape.image_tokens, 2 * 15 * 20);
  EXPECT_EQ(shape.tokens, 256 + shape.image_tokens + 2 * (6 + 2));
}

}  // namespace
}  // namespace vlmtrain::models::qwen3_vl
