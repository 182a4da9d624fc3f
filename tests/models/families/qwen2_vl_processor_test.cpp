#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models::qwen2_vl {
namespace {

using data::PatchGrid;
using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

/// Checkpoint files that a test edits.
class EditedCheckpoint {
 public:
  EditedCheckpoint() {
    for (const char* name : {"config.json", "preprocessor_config.json", "tokenizer.json"}) {
      std::filesystem::copy_file(origin_.checkpoint() / name, folder_.path() / name);
    }
  }

  template <class Change>
  void change(const char* name, const Change& change) const {
    auto content = io::read_json(folder_.path() / name);
    change(content);
    io::write_file(folder_.path() / name, content.dump());
  }

  std::string get_error() const {
    return get_error_message([&] { load_processor(folder_.path(), {}); }, ExitCode::kBadData);
  }

  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  parity::Case origin_{"qwen2_5_vl_windows"};
  parity::TemporaryFolder folder_;
};

TEST(Qwen2VlConfig, UnsupportedKeysAreRefused) {
  const std::vector<std::pair<json, std::string>> changes{
      {{{"rope_scaling", {{"type", "mrope"}, {"mrope_section", {2, 3, 4}}}}}, "mrope_section [2, 3, 4]"},
      {{{"use_sliding_window", true}, {"max_window_layers", 1}}, "use_sliding_window"},
      {{{"layer_types", {"full_attention", "sliding_attention"}}}, "layer_types"},
      {{{"hidden_act", "gelu"}}, "hidden_act gelu"},
      {{{"image_token_id", 100'000}}, "image_token_id 100000"},
      {{{"video_token_id", 7}}, "video_token_id is 7"},
      {{{"vision_config", {{"out_hidden_size", 48}}}}, "out_hidden_size is 48"},
      {{{"vision_config", {{"hidden_act", "gelu"}}}}, "hidden_act gelu"},
      {{{"vision_config", {{"window_size", 7}}}}, "window_size 7"},
      {{{"vision_config", {{"num_heads", 5}}}}, "5 heads"},
      {{{"vision_config", {{"in_channels", 1}}}}, "in_channels"},
      {{{"vision_config", {{"depth", 0}}}}, "depth is 0"},
  };
  for (const auto& [change, expected_message] : changes) {
    const EditedCheckpoint checkpoint;
    checkpoint.change("config.json", [&](auto& config) { config.merge_patch(change); });
    EXPECT_THAT(checkpoint.get_error(), AllOf(HasSubstr("config.json"), HasSubstr(expected_message)));
  }
}

TEST(Qwen2VlProcessor, UnsupportedSettingsAreRefused) {
  const std::vector<std::pair<json, std::string>> changes{
      {{{"do_resize", false}}, "do_resize"},
      {{{"patch_size", 14}}, "patch_size is 14"},
      {{{"merge_size", 1}}, "merge_size is 1"},
      {{{"min_pixels", nullptr}, {"max_pixels", nullptr}, {"size", 224}}, "shortest_edge"},
      {{{"max_pixels", 10}}, "max_pixels"},
      {{{"do_center_crop", true}}, "do_center_crop"},
      {{{"sharpen", 2}}, "sharpen"},
      {{{"image_processor_type", "CLIPImageProcessor"}}, "CLIPImageProcessor"},
  };
  for (const auto& [change, expected_message] : changes) {
    const EditedCheckpoint checkpoint;
    checkpoint.change("preprocessor_config.json", [&](auto& config) { config.merge_patch(change); });
    EXPECT_THAT(checkpoint.get_error(), AllOf(HasSubstr("preprocessor_config.json"), HasSubstr(expected_message)));
  }
}

TEST(Qwen2VlProcessor, RequiresAVideoToken) {
  const EditedCheckpoint checkpoint;
  checkpoint.change("tokenizer.json", [](auto& tokenizer) {
    for (auto& token : tokenizer["added_tokens"]) {
      if (token["content"] == "<|video_pad|>") token["content"] = "<|other|>";
    }
  });
  EXPECT_THAT(checkpoint.get_error(), HasSubstr("<|video_pad|>"));
}

TEST(Qwen2VlProcessor, ExtremeAspectRatioIsRefused) {
  const parity::Case origin("qwen2_5_vl_windows");
  const parity::TemporaryFolder folder;
  auto settings = origin.processor_settings();
  // Only the header of a PNG with 2,010 x 10 pixels.
  std::string header("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x07\xda\0\0\0\x0a\x08\x02\0\0\0", 29);
  io::write_file(folder.path() / "strip.png", header + std::string("\0\0\0\0", 4));
  io::Record record;
  record.id = "long";
  record.turns = {{io::Role::kUser, "<image>\nWhat?"}, {io::Role::kAssistant, "It."}};
  record.images = {folder.path() / "strip.png"};
  const auto processor = load_processor(origin.checkpoint(), settings);
  EXPECT_THAT(get_error_message([&] { processor->process_headers(record, 0); }, ExitCode::kBadData),
              AllOf(HasSubstr("sample long"), HasSubstr("strip.png"), HasSubstr("limit of 200")));
}

TEST(Qwen2VlProcessor, OutlineHasShapesOfPixels) {
  const parity::Case origin("qwen2_5_vl_windows");
  const auto processor = origin.load_processor();
  const auto records = origin.records();
  for (int64_t i = 0; i < std::ssize(records); ++i) {
    const auto outline = processor->process_headers(records[static_cast<size_t>(i)], i);
    const auto sample = processor->process(records[static_cast<size_t>(i)], i);
    EXPECT_EQ(data::get_sample_shape(outline), data::get_sample_shape(sample));
    EXPECT_EQ(outline.position_ids, sample.position_ids);
    EXPECT_FALSE(sample.patch_grids.empty());
  }
}

TEST(Qwen2VlProcessor, MaxPixelsLimitImages) {
  const parity::Case origin("qwen2_5_vl_windows");
  const SyntheticSample sample{.images = 2, .image_width = 1024, .image_height = 768};
  const auto shape = compute_sample_shape(origin.checkpoint(), sample);
  EXPECT_EQ(shape.patch_grids, (std::vector<PatchGrid>{{1, 10, 14}, {1, 10, 14}}));  // 40 x 56 of at most 2,560 pixels
  EXPECT_EQ(shape.image_tokens, 2 * 35);
  EXPECT_EQ(shape.tokens, 2 * (35 + 2) + sample.text_tokens);
  SyntheticSample limited_sample = sample;
  limited_sample.image_max_pixels = 200;  // less than 256, the minimum of the file
  EXPECT_EQ(compute_sample_shape(origin.checkpoint(), limited_sample).patch_grids.front(), (PatchGrid{1, 2, 4}));
}

/// Checkpoint with 8 x 8 pixels per token that accepts large images, and a record with two of them.
class LongSampleTest : public testing::Test {
 protected:
  LongSampleTest() {
    for (const auto& entry : std::filesystem::directory_iterator(origin_.checkpoint())) {
      std::filesystem::copy_file(entry.path(), folder_.path() / entry.path().filename());
    }
    auto content = io::read_json(folder_.path() / "preprocessor_config.json");
    content.erase("size");
    content["min_pixels"] = 256;
    content["max_pixels"] = 1'000'000;
    io::write_file(folder_.path() / "preprocessor_config.json", content.dump());
    write_image("large.jpg", 300, 400);
    write_image("small.jpg", 40, 64);  // 40 tokens, fewer than the minimum
    record_ = origin_.records().front();
    for (const auto& record : origin_.records()) {
      if (record.images.size() == 1 && record.videos.empty()) record_ = record;
    }
  }

  void write_image(const char* name, int64_t height, int64_t width) const {
    const at::Tensor pixels = at::arange(3 * height * width, at::kLong).remainder(251).to(at::kByte);
    io::write_file(folder_.path() / name, image::encode_jpeg(pixels.view({3, height, width}), 95));
  }

  data::Sample process(const ProcessorSettings& settings) const {
    const auto processor = load_processor(folder_.path(), settings);
    auto sample = processor->process(record_, 0);
    const auto outline = processor->process_headers(record_, 0);
    EXPECT_EQ(data::get_sample_shape(outline), data::get_sample_shape(sample));
    EXPECT_EQ(outline.shrink_info, sample.shrink_info);
    return sample;
  }

  const parity::Case origin_{"qwen2_5_vl_windows"};
  parity::TemporaryFolder folder_;
  io::Record record_;
  ProcessorSettings settings_;
};

TEST_F(LongSampleTest, IsShrunkUntilItFits) {
  ASSERT_EQ(record_.images.size(), 1);
  record_.images = {folder_.path() / "large.jpg"};
  const auto full_sample = process(settings_);
  EXPECT_FALSE(full_sample.shrink_info);
  const int64_t text = full_sample.tokens() - std::ssize(full_sample.image_token_positions);
  EXPECT_EQ(std::ssize(full_sample.image_token_positions), 38 * 50);
  for (const int64_t max_image_tokens : {1899, 1500, 700, 65, 64}) {
    SCOPED_TRACE(max_image_tokens);
    settings_.max_length = text + max_image_tokens;
    settings_.on_too_long = data::LongSamplePolicy::kShrink;
    settings_.image_max_pixels.reset();
    const auto sample = process(settings_);
    ASSERT_TRUE(sample.shrink_info);
    EXPECT_EQ(sample.shrink_info->tokens, full_sample.tokens());
    EXPECT_EQ(sample.shrink_info->pixels, 304 * 400 * 2) << "two frames";
    EXPECT_EQ(sample.shrink_info->tokens_after, sample.tokens());
    EXPECT_LE(sample.tokens(), settings_.max_length);
    EXPECT_EQ(sample.label_tokens(), full_sample.label_tokens());

    // data.image_max_pixels of that number has the same result; one more token is too long.
    settings_.on_too_long = data::LongSamplePolicy::kFail;
    settings_.image_max_pixels = sample.shrink_info->image_max_pixels;
    const auto limited_sample = process(settings_);
    EXPECT_TRUE(at::equal(limited_sample.pixel_values, sample.pixel_values));
    EXPECT_EQ(limited_sample.token_ids, sample.token_ids);
    EXPECT_EQ(limited_sample.position_ids, sample.position_ids);
    settings_.image_max_pixels = *settings_.image_max_pixels + 64;
    EXPECT_THROW(process(settings_), data::SampleTooLongError);
  }
  settings_.on_too_long = data::LongSamplePolicy::kShrink;
  settings_.image_max_pixels.reset();
  settings_.max_length = text + 47;
  EXPECT_THROW(process(settings_), data::SampleTooLongError) << "at the floor of 64 tokens it has 48";
  record_.images = {folder_.path() / "small.jpg"};
  settings_.max_length = text + 39;
  EXPECT_THROW(process(settings_), data::SampleTooLongError) << "it is smaller than the floor and remains unchanged";
}

/// Times depend on the used frames, sizes on their budget.
TEST(Qwen2VlProcessor, SamplesFramesBySettings) {
  const parity::Case origin("qwen2_5_vl_video");
  auto settings = origin.processor_settings();
  const auto records = origin.records();
  const auto compute_grid = [&](const models::ProcessorSettings& edited) {
    return load_processor(origin.checkpoint(), edited)->process_headers(records.front(), 0).patch_grids.front();
  };
  // 6 of 10 frames, because the checkpoint's max_frames is 7.
  EXPECT_EQ(compute_grid(settings), (PatchGrid{3, 4, 6}));
  const auto sample = load_processor(origin.checkpoint(), settings)->process_headers(records.front(), 0);
  EXPECT_EQ(sample.num_videos, 1);
  EXPECT_EQ(sample.video_frames, 6);
  settings.video_max_frames = 4;
  EXPECT_EQ(compute_grid(settings), (PatchGrid{2, 4, 6}));
  settings.image_max_pixels = 200;
  EXPECT_EQ(compute_grid(settings), (PatchGrid{2, 2, 4}));
}

TEST(Qwen2VlProcessor, PreviewsShowFramesOfTheTower) {
  const parity::Case origin("qwen2_5_vl_video");
  const auto processor = origin.load_processor();
  const auto records = origin.records();
  const auto sample = processor->process(records.front(), 0);
  const auto previews = processor->preview_media(records.front(), sample);
  ASSERT_EQ(std::ssize(previews), sample.video_frames);
  const int64_t side = sample.pixel_values.size(3);
  for (size_t i = 0; i < previews.size(); ++i) {
    EXPECT_EQ(previews[i].frame_index, i);
    EXPECT_EQ(previews[i].pixels.sizes(), (std::vector<int64_t>{3, 4 * side, 6 * side}));
    // The first patch of the pair of frames; the first frame is above the second.
    const at::Tensor patch = sample.pixel_values[static_cast<int64_t>(i / 2) * 24];
    EXPECT_TRUE(at::equal(previews[i].pixels.narrow(1, 0, side).narrow(2, 0, side),
                          patch.narrow(1, static_cast<int64_t>(i % 2) * side, side)));
  }
}

}  // namespace
}  // namespace vlmtrain::models::qwen2_vl
