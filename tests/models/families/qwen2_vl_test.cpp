#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/qwen2_vl/config.h"
#include "models/qwen2_vl/image_processor.h"
#include "models/qwen2_vl/model.h"
#include "models/qwen2_vl/processor.h"
#include "models/qwen2_vl/video_processor.h"
#include "models/qwen2_vl/vision_tower.h"
#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/image/encode.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models::qwen2_vl {
namespace {

using data::PatchGrid;
using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// What transformers computes (tests/parity/reference/make_qwen_layouts.py).
const json& read_reference() {
  static const json content =
      io::read_json(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/models/data/qwen2_vl.json");
  return content;
}

TEST(SmartResize, MatchesTransformers) {
  for (const json& sizes : read_reference().at("smart_resize")) {
    const auto resize = [&] {
      return smart_resize({sizes.at(0), sizes.at(1)}, sizes.at(2), {sizes.at(3), sizes.at(4)});
    };
    if (sizes.at(5).is_null()) {
      EXPECT_THAT(get_error_message([&] { resize(); }, ExitCode::kBadData), HasSubstr("200 times")) << sizes;
    } else {
      EXPECT_EQ(resize(), (image::ImageSize{sizes.at(5), sizes.at(6)})) << sizes;
    }
  }
}

/// Entries of two per patch, in the tower's order, from pairs in the order of the patches.
std::vector<int64_t> order_by_axis(const json& pairs, const std::vector<int64_t>& order) {
  std::vector<int64_t> axes;
  for (const size_t axis : {0U, 1U}) {
    for (const int64_t patch : order) axes.push_back(pairs.at(static_cast<size_t>(patch)).at(axis));
  }
  return axes;
}

std::vector<PatchGrid> parse_grids(const json& grids) {
  std::vector<PatchGrid> result;
  for (const json& grid : grids) result.push_back({grid.at(0), grid.at(1), grid.at(2)});
  return result;
}

TEST(PatchLayout, MatchesWindowsOfTransformers) {
  for (const json& windows : read_reference().at("windows")) {
    VisionConfig config;
    config.window_tokens = windows.at("window_size").get<int64_t>() / config.pixels_per_token_side();
    const auto layout = PatchLayout::make(parse_grids(windows.at("grids")), config);
    EXPECT_EQ(layout.token_order, windows.at("order"));
    EXPECT_EQ(layout.window_patches, windows.at("lengths"));
    EXPECT_EQ(layout.positions, order_by_axis(windows.at("positions"), layout.patch_order));
    for (size_t index = 0; index < layout.token_order.size(); ++index) {
      EXPECT_EQ(layout.inverse_token_order.at(static_cast<size_t>(layout.token_order[index])), index);
    }
  }
}

TEST(PatchLayout, WithoutWindowsIsInOrder) {
  const json& windows = read_reference().at("windows").at(2);
  const auto layout = PatchLayout::make(parse_grids(windows.at("grids")), VisionConfig{});
  EXPECT_TRUE(layout.patch_order.empty());
  EXPECT_TRUE(layout.window_patches.empty());
  EXPECT_THAT(layout.frame_patches, ElementsAre(6 * 18, 6 * 18, 2 * 4, 16 * 16));
  std::vector<int64_t> order(windows.at("positions").size());
  std::iota(order.begin(), order.end(), int64_t{0});
  EXPECT_EQ(layout.positions, order_by_axis(windows.at("positions"), order));
}

TEST(PatchLayout, RefusesGridsThatDoNotFillTokens) {
  EXPECT_THROW(PatchLayout::make(std::vector<PatchGrid>{{1, 5, 8}}, VisionConfig{}), InternalError);
  EXPECT_THROW(PatchLayout::make(std::vector<PatchGrid>{{1, 4, 7}}, VisionConfig{}), InternalError);
}

TEST(PositionIds, MatchTransformers5) {
  for (const json& sample : read_reference().at("positions")) {
    std::vector<VisionSpan> spans;
    int64_t tokens = 0;
    const json& texts = sample.at("text");
    for (size_t i = 0; i < texts.size(); ++i) {
      tokens += texts[i].get<int64_t>();
      if (i == sample.at("spans").size()) break;
      const json& span = sample["spans"].at(i);
      const PatchGrid grid = parse_grids(json::array({span.at(0)})).front();
      const float step = span.at(1).is_null() ? 1.0F
                                              : static_cast<float>(sample.at("tokens_per_second").get<int64_t>()) *
                                                    span.at(1).get<float>();
      spans.push_back({tokens, grid, step});
      tokens += grid.patches();
    }
    EXPECT_EQ(make_position_ids(tokens, spans, data::VideoLayout::kTransformers5), sample.at("position_ids"))
        << sample.at("spans");
  }
}

TEST(PositionIds, ContinueAfterLargestPositionInReleasedLayout) {
  // Two frames of 1 x 2 tokens, three positions apart, between two tokens of text.
  const std::vector<VisionSpan> spans{{1, {2, 1, 2}, 3.5F}};
  using data::VideoLayout;
  EXPECT_THAT(make_position_ids(6, spans, VideoLayout::kReleased), ElementsAre(0, 1, 1, 4, 4, 5,       // time
                                                                               0, 1, 1, 1, 1, 5,       // rows
                                                                               0, 1, 2, 1, 2, 5));     // columns
  EXPECT_THAT(make_position_ids(6, spans, VideoLayout::kTransformers5), ElementsAre(0, 1, 1, 4, 4, 3,  //
                                                                                    0, 1, 1, 1, 1, 3,  //
                                                                                    0, 1, 2, 1, 2, 3));
  for (const auto layout : {VideoLayout::kReleased, VideoLayout::kTransformers5}) {
    // Pictures, and videos that take no longer than they are wide, are the same.
    EXPECT_THAT(make_position_ids(4, std::vector<VisionSpan>{{1, {1, 1, 2}, 1}}, layout),
                ElementsAre(0, 1, 1, 3, 0, 1, 1, 3, 0, 1, 2, 3));
    EXPECT_TRUE(make_position_ids(7, {}, layout).empty());
  }
}

TEST(VideoSettings, MatchesFramesOfTransformers) {
  for (const json& entry : read_reference().at("frames")) {
    const json& video = entry.at("video");
    VideoSettings settings;
    settings.limits.min_frames = video.at(3);
    settings.limits.max_frames = video.at(4);
    EXPECT_EQ(settings.sample(video.at(0), video.at(1), video.at(2), VisionConfig{}), entry.at("indices")) << video;
  }
}

TEST(VideoSettings, SamplesAVideoOfOneFrame) {
  EXPECT_THAT(VideoSettings{}.sample(1, 25, 2, VisionConfig{}), ElementsAre(0));
}

TEST(VideoSettings, SplitsVideoBudgetAmongFrames) {
  VideoSettings settings;
  settings.pixels.budget = {100'000, 600'000};
  EXPECT_EQ(settings.compute_frame_settings(768, VisionConfig{}).budget.max_pixels, 600'000);
  settings.limits.cap_pixels_per_frame = true;
  // int(128000 · 28² · 0.9) · 2 // frames, but at least 1.05 times the least
  EXPECT_EQ(settings.compute_frame_settings(100, VisionConfig{}).budget.max_pixels, 600'000);
  EXPECT_EQ(settings.compute_frame_settings(400, VisionConfig{}).budget.max_pixels, 451'584);
  EXPECT_EQ(settings.compute_frame_settings(40'000, VisionConfig{}).budget.max_pixels, 105'000);
}

/// Of frames [frames, 3, height, width], each in memory that the next one takes.
at::Tensor make_patches(const at::Tensor& frames, const PixelSettings& settings, const VisionConfig& vision) {
  const auto size = compute_resized_size({frames.size(2), frames.size(3)}, settings, vision);
  PatchWriter writer(frames.size(0), size, settings.filter, vision);
  const at::Tensor frame = at::empty_like(frames[0]);
  for (int64_t i = 0; i < frames.size(0); ++i) writer.add(frame.copy_(frames[i]));
  return writer.finish();
}

TEST(PatchWriter, WritesPatchesInTokenOrder) {
  VisionConfig vision;
  vision.patch_size = 2;
  const PixelSettings settings{.budget = {1, 1'000}};
  const at::Tensor frames = at::arange(2 * 3 * 4 * 8, at::kByte).view({2, 3, 4, 8});
  const at::Tensor patches = make_patches(frames, settings, vision);
  ASSERT_EQ(patches.sizes(), (std::vector<int64_t>{2 * 4, 3, 4, 2}));
  EXPECT_EQ(compute_grid(2, {4, 8}, vision), (PatchGrid{1, 2, 4}));
  for (int64_t patch = 0; patch < 8; ++patch) {
    const int64_t row = patch / 2 % 2, column = patch / 4 * 2 + patch % 2;
    for (int64_t frame = 0; frame < 2; ++frame) {
      const at::Tensor expected_patch = frames[frame].narrow(1, 2 * row, 2).narrow(2, 2 * column, 2);
      EXPECT_TRUE(at::equal(patches[patch].narrow(1, 2 * frame, 2), expected_patch)) << patch;
    }
  }
}

TEST(PatchWriter, ExtractFrameInvertsPatches) {
  VisionConfig vision;
  vision.patch_size = 2;
  const PixelSettings settings{.budget = {1, 1'000}};
  const at::Tensor frames = at::arange(3 * 3 * 8 * 12, at::kLong).remainder(251).to(at::kByte).view({3, 3, 8, 12});
  const at::Tensor patches = make_patches(frames, settings, vision);
  const auto grid = compute_grid(3, {8, 12}, vision);
  for (int64_t frame = 0; frame < 3; ++frame) {
    EXPECT_TRUE(at::equal(extract_frame(patches, grid, frame, vision), frames[frame])) << frame;
  }
  EXPECT_TRUE(at::equal(extract_frame(patches, grid, 3, vision), frames[2])) << "the last one is repeated";
}

TEST(PatchWriter, RepeatsTheLastFrame) {
  VisionConfig vision;
  vision.patch_size = 2;
  const PixelSettings settings{.budget = {1, 1'000}};
  const at::Tensor frames = at::arange(3 * 3 * 4 * 4, at::kByte).view({3, 3, 4, 4});
  const at::Tensor patches = make_patches(frames, settings, vision);
  EXPECT_EQ(patches.size(0), 8);
  EXPECT_EQ(compute_grid(3, {4, 4}, vision), (PatchGrid{2, 2, 2}));
  EXPECT_TRUE(at::equal(patches.narrow(0, 4, 4).narrow(2, 0, 2), patches.narrow(0, 4, 4).narrow(2, 2, 2)));
}

TEST(QwenKeyMap, FollowTheCheckpoint) {
  const std::string parameter = "model.language_model.layers.0.mlp.up_proj.weight",
                    tower = "model.visual.merger.ln_q.weight";
  EXPECT_EQ(QwenKeyMap::detect({}).to_checkpoint_key(parameter), "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(QwenKeyMap::detect({}).to_checkpoint_key(tower), "visual.merger.ln_q.weight");
  const std::vector<std::string> modules{tower, parameter};
  EXPECT_EQ(QwenKeyMap::detect(modules).to_checkpoint_key(parameter), parameter);
  EXPECT_EQ(QwenKeyMap::detect(modules).to_checkpoint_key(tower), tower);
  EXPECT_EQ(QwenKeyMap::detect(modules).to_checkpoint_key("lm_head.weight"), "lm_head.weight");
}

/// A checkpoint's files, one of them changed.
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
      {{{"vision_config", {{"window_size", 7}}}}, "window_size of 7"},
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
  // A PNG's header alone: 2,010 x 10 pixels.
  std::string header("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x07\xda\0\0\0\x0a\x08\x02\0\0\0", 29);
  io::write_file(folder.path() / "strip.png", header + std::string("\0\0\0\0", 4));
  io::Record record;
  record.id = "long";
  record.turns = {{io::Role::kUser, "<image>\nWhat?"}, {io::Role::kAssistant, "It."}};
  record.images = {folder.path() / "strip.png"};
  const auto processor = load_processor(origin.checkpoint(), settings);
  EXPECT_THAT(get_error_message([&] { processor->process_headers(record, 0); }, ExitCode::kBadData),
              AllOf(HasSubstr("sample long"), HasSubstr("strip.png"), HasSubstr("200 times")));
}

TEST(Qwen2VlProcessor, OutlineHasShapesOfPixels) {
  const parity::Case origin("qwen2_5_vl_windows");
  const auto processor = origin.load_processor();
  const auto records = origin.records();
  for (int64_t i = 0; i < std::ssize(records); ++i) {
    const auto outline = processor->process_headers(records[static_cast<size_t>(i)], i);
    const auto sample = processor->process(records[static_cast<size_t>(i)], i);
    EXPECT_EQ(data::get_shape(outline), data::get_shape(sample));
    EXPECT_EQ(outline.position_ids, sample.position_ids);
    EXPECT_FALSE(sample.grids.empty());
  }
}

TEST(Qwen2VlProcessor, MaxPixelsLimitImages) {
  const parity::Case origin("qwen2_5_vl_windows");
  const SyntheticSample sample{.images = 2, .image_width = 1024, .image_height = 768};
  const auto shape = compute_sample_shape(origin.checkpoint(), sample);
  EXPECT_EQ(shape.grids, (std::vector<PatchGrid>{{1, 10, 14}, {1, 10, 14}}));  // 40 x 56 of at most 2,560 pixels
  EXPECT_EQ(shape.image_tokens, 2 * 35);
  EXPECT_EQ(shape.tokens, 2 * (35 + 2) + sample.text_tokens);
  SyntheticSample limited_sample = sample;
  limited_sample.image_max_pixels = 200;  // less than the 256 that pictures are enlarged to
  EXPECT_EQ(compute_sample_shape(origin.checkpoint(), limited_sample).grids.front(), (PatchGrid{1, 2, 4}));
}

/// A checkpoint with tokens' squares of 8 x 8 pixels, which takes large pictures, and a record with two of them.
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
    write_image("small.jpg", 40, 64);  // 40 tokens, fewer than the floor
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
    EXPECT_EQ(data::get_shape(outline), data::get_shape(sample));
    EXPECT_EQ(outline.shrunk, sample.shrunk);
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
  EXPECT_FALSE(full_sample.shrunk);
  const int64_t text = full_sample.tokens() - std::ssize(full_sample.image_token_positions);
  EXPECT_EQ(std::ssize(full_sample.image_token_positions), 38 * 50);
  for (const int64_t max_image_tokens : {1899, 1500, 700, 65, 64}) {
    SCOPED_TRACE(max_image_tokens);
    settings_.max_length = text + max_image_tokens;
    settings_.on_too_long = data::LongSamplePolicy::kShrink;
    settings_.image_max_pixels.reset();
    const auto sample = process(settings_);
    ASSERT_TRUE(sample.shrunk);
    EXPECT_EQ(sample.shrunk->tokens, full_sample.tokens());
    EXPECT_EQ(sample.shrunk->pixels, 304 * 400 * 2) << "two frames";
    EXPECT_EQ(sample.shrunk->tokens_after, sample.tokens());
    EXPECT_LE(sample.tokens(), settings_.max_length);
    EXPECT_EQ(sample.label_tokens(), full_sample.label_tokens());

    // What data.image_max_pixels of that number gives; of one square more it is too long.
    settings_.on_too_long = data::LongSamplePolicy::kFail;
    settings_.image_max_pixels = sample.shrunk->image_max_pixels;
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
  EXPECT_THROW(process(settings_), data::SampleTooLongError) << "it is smaller than the floor, and stays";
}

TEST(Qwen2VlModel, VisionPassesMatchASinglePass) {
  const parity::Case origin("qwen2_5_vl_video");
  const auto model = origin.load_model();
  const auto batch = data::collate(origin.samples());
  const at::Tensor single_pass = model->forward(batch, {.positions = batch.label_positions}).hidden;
  model->set_vision_tiles_per_pass(30);
  EXPECT_TRUE(
      at::allclose(model->forward(batch, {.positions = batch.label_positions}).hidden, single_pass, 1e-5, 1e-5));
}

TEST(Qwen2VlModel, MergerIsTheProjector) {
  const auto model = parity::Case("qwen2_vl_images").load_model();
  int64_t num_merger = 0;
  for (const auto& parameter : model->parameters().all()) {
    const bool is_visual = parameter.name.starts_with("model.visual.");
    const bool is_merger = parameter.name.starts_with("model.visual.merger.");
    num_merger += is_merger ? 1 : 0;
    EXPECT_EQ(parameter.component, is_merger   ? nn::Component::kProjector
                                   : is_visual ? nn::Component::kVisionTower
                                               : nn::Component::kLanguageModel)
        << parameter.name;
  }
  EXPECT_EQ(num_merger, 6);
}

/// Times change with the frames that are taken, sizes with the frames' budget.
TEST(Qwen2VlProcessor, SamplesFramesBySettings) {
  const parity::Case origin("qwen2_5_vl_video");
  auto settings = origin.processor_settings();
  const auto records = origin.records();
  const auto compute_grid = [&](const models::ProcessorSettings& edited) {
    return load_processor(origin.checkpoint(), edited)->process_headers(records.front(), 0).grids.front();
  };
  EXPECT_EQ(compute_grid(settings), (PatchGrid{3, 4, 6}));  // of 10 frames 6, since the checkpoint's max_frames is 7
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
    // The first patch of the frame's pair; the first frame lies above the second in it.
    const at::Tensor patch = sample.pixel_values[static_cast<int64_t>(i / 2) * 24];
    EXPECT_TRUE(at::equal(previews[i].pixels.narrow(1, 0, side).narrow(2, 0, side),
                          patch.narrow(1, static_cast<int64_t>(i % 2) * side, side)));
  }
}

}  // namespace
}  // namespace vlmtrain::models::qwen2_vl
