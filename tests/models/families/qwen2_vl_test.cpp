#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/media/patch_writer.h"
#include "models/qwen2_vl/family.h"
#include "models/qwen2_vl/image_processor.h"
#include "models/qwen2_vl/model.h"
#include "models/qwen2_vl/processor.h"
#include "models/qwen2_vl/video_processor.h"
#include "parity/case.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::models::qwen2_vl {
namespace {

using data::PatchGrid;
using io::get_error_message;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

/// Returns results of transformers (tests/parity/reference/modules/qwen_layouts.py).
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
      EXPECT_THAT(get_error_message([&] { resize(); }, ExitCode::kBadData), HasSubstr("limit of 200")) << sizes;
    } else {
      EXPECT_EQ(resize(), (image::ImageSize{sizes.at(5), sizes.at(6)})) << sizes;
    }
  }
}

/// Returns two entries per patch in the tower's order from pairs in input order.
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
    config.tokens_per_window_side = windows.at("window_size").get<int64_t>() / config.pixels_per_token_side();
    const auto layout = PatchLayout::make(parse_grids(windows.at("grids")), config);
    EXPECT_EQ(layout.token_order, windows.at("order"));
    EXPECT_EQ(layout.window_patch_counts, windows.at("lengths"));
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
  EXPECT_TRUE(layout.window_patch_counts.empty());
  EXPECT_THAT(layout.frame_patch_counts, ElementsAre(6 * 18, 6 * 18, 2 * 4, 16 * 16));
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
    EXPECT_EQ(make_position_ids(tokens, spans, data::VideoTokenLayout::kTransformers5), sample.at("position_ids"))
        << sample.at("spans");
  }
}

TEST(PositionIds, ContinueAfterLargestPositionInReleasedLayout) {
  // Two frames of 1 x 2 tokens, three positions apart, between two text tokens.
  const std::vector<VisionSpan> spans{{1, {2, 1, 2}, 3.5F}};
  using data::VideoTokenLayout;
  EXPECT_THAT(make_position_ids(6, spans, VideoTokenLayout::kReleasedCode), ElementsAre(0, 1, 1, 4, 4, 5,    // time
                                                                                        0, 1, 1, 1, 1, 5,    // rows
                                                                                        0, 1, 2, 1, 2, 5));  // columns
  EXPECT_THAT(make_position_ids(6, spans, VideoTokenLayout::kTransformers5), ElementsAre(0, 1, 1, 4, 4, 3,   //
                                                                                         0, 1, 1, 1, 1, 3,   //
                                                                                         0, 1, 2, 1, 2, 3));
  for (const auto layout : {VideoTokenLayout::kReleasedCode, VideoTokenLayout::kTransformers5}) {
    // Images, and videos that take no longer than they are wide, are equal in both layouts.
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
    EXPECT_EQ(settings.sample_frame_indices(video.at(0), video.at(1), video.at(2), VisionConfig{}), entry.at("indices"))
        << video;
  }
}

TEST(VideoSettings, SamplesAVideoOfOneFrame) {
  EXPECT_THAT(VideoSettings{}.sample_frame_indices(1, 25, 2, VisionConfig{}), ElementsAre(0));
}

TEST(VideoSettings, SplitsVideoBudgetAmongFrames) {
  VideoSettings settings;
  settings.pixels.budget = {100'000, 600'000};
  EXPECT_EQ(settings.compute_frame_settings(768, VisionConfig{}).budget.max_pixels, 600'000);
  settings.limits.limits_pixels_per_frame = true;
  // int(128000 · 28² · 0.9) · 2 // frames, but at least 1.05 times the minimum
  EXPECT_EQ(settings.compute_frame_settings(100, VisionConfig{}).budget.max_pixels, 600'000);
  EXPECT_EQ(settings.compute_frame_settings(400, VisionConfig{}).budget.max_pixels, 451'584);
  EXPECT_EQ(settings.compute_frame_settings(40'000, VisionConfig{}).budget.max_pixels, 105'000);
}

/// Returns the patches of frames [frames, 3, height, width]; each frame reuses the memory of the
/// previous one.
at::Tensor make_patches(const at::Tensor& frames, const PixelSettings& settings, const VisionConfig& vision) {
  const auto size = compute_resized_size({frames.size(2), frames.size(3)}, settings, vision);
  PatchWriter writer(frames.size(0), size, settings.filter, vision.patch_format());
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
  EXPECT_EQ(vision.patch_format().compute_grid(2, {4, 8}), (PatchGrid{1, 2, 4}));
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
  const auto grid = vision.patch_format().compute_grid(3, {8, 12});
  for (int64_t frame = 0; frame < 3; ++frame) {
    EXPECT_TRUE(at::equal(extract_frame(patches, grid, frame, vision.patch_format()), frames[frame])) << frame;
  }
  EXPECT_TRUE(at::equal(extract_frame(patches, grid, 3, vision.patch_format()), frames[2]))
      << "the last one is repeated";
}

TEST(PatchWriter, RepeatsTheLastFrame) {
  VisionConfig vision;
  vision.patch_size = 2;
  const PixelSettings settings{.budget = {1, 1'000}};
  const at::Tensor frames = at::arange(3 * 3 * 4 * 4, at::kByte).view({3, 3, 4, 4});
  const at::Tensor patches = make_patches(frames, settings, vision);
  EXPECT_EQ(patches.size(0), 8);
  EXPECT_EQ(vision.patch_format().compute_grid(3, {4, 4}), (PatchGrid{2, 2, 2}));
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

TEST(Qwen2VlModel, VisionPassesMatchASinglePass) {
  const parity::Case origin("qwen2_5_vl_video");
  const auto model = origin.load_model();
  const auto batch = data::collate(origin.samples());
  const at::Tensor single_pass = model->forward(batch, {.positions = batch.label_positions}).hidden_states;
  model->set_vision_tiles_per_pass(30);
  EXPECT_TRUE(
      at::allclose(model->forward(batch, {.positions = batch.label_positions}).hidden_states, single_pass, 1e-5, 1e-5));
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

}  // namespace
}  // namespace vlmtrain::models::qwen2_vl
