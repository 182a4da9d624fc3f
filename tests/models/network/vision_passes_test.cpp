#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

using data::PatchGrid;

/// Returns `tiles` tiles of one pixel per channel.
VisionInput make_input(int64_t tiles, std::vector<PatchGrid> grids = {}) {
  return {at::arange(tiles, at::kByte).view({-1, 1, 1, 1}).expand({-1, 3, 1, 1}), std::move(grids)};
}

void expect_all_tiles(const VisionInput& input, const std::vector<VisionInput>& passes) {
  std::vector<at::Tensor> tiles;
  for (const auto& pass : passes) tiles.push_back(pass.pixel_values);
  EXPECT_TRUE(at::equal(at::cat(tiles), input.pixel_values));
}

TEST(VisionPasses, SinglePassIfAllFits) {
  EXPECT_EQ(split_vision_passes(make_input(7), 0).size(), 1);
  EXPECT_EQ(split_vision_passes(make_input(7), 7).size(), 1);
}

TEST(VisionPasses, SplitsBetweenTiles) {
  const auto passes = split_vision_passes(make_input(7), 3);
  ASSERT_EQ(passes.size(), 3);
  EXPECT_EQ(passes[2].pixel_values.size(0), 1);
  expect_all_tiles(make_input(7), passes);
}

TEST(VisionPasses, SplitsGridsBetweenFrames) {
  const auto input = make_input(26, {{1, 2, 4}, {4, 2, 2}, {1, 1, 2}});
  const auto passes = split_vision_passes(input, 9);
  ASSERT_EQ(passes.size(), 4);
  EXPECT_EQ(passes[0].patch_grids, (std::vector<PatchGrid>{{1, 2, 4}}));
  EXPECT_EQ(passes[1].patch_grids, (std::vector<PatchGrid>{{2, 2, 2}}));
  EXPECT_EQ(passes[2].patch_grids, (std::vector<PatchGrid>{{2, 2, 2}}));
  EXPECT_EQ(passes[3].patch_grids, (std::vector<PatchGrid>{{1, 1, 2}}));
  expect_all_tiles(input, passes);
}

TEST(VisionPasses, FillsPassesAcrossGrids) {
  const auto input = make_input(26, {{1, 2, 4}, {4, 2, 2}, {1, 1, 2}});
  const auto passes = split_vision_passes(input, 12);
  ASSERT_EQ(passes.size(), 3);
  EXPECT_EQ(passes[0].patch_grids, (std::vector<PatchGrid>{{1, 2, 4}, {1, 2, 2}}));
  EXPECT_EQ(passes[1].patch_grids, (std::vector<PatchGrid>{{3, 2, 2}}));
  EXPECT_EQ(passes[2].patch_grids, (std::vector<PatchGrid>{{1, 1, 2}}));
  expect_all_tiles(input, passes);
}

TEST(VisionPasses, PassesHaveDropoutUnitsOfTheirTiles) {
  auto tiles = make_input(4);
  for (uint64_t seed = 0; seed < 4; ++seed) tiles.dropout_segments.push_back({.seed = seed});
  const auto tile_passes = split_vision_passes(tiles, 3);
  EXPECT_EQ(tile_passes[0].dropout_segments,
            std::vector(tiles.dropout_segments.begin(), tiles.dropout_segments.begin() + 3));
  EXPECT_EQ(tile_passes[1].dropout_segments,
            std::vector(tiles.dropout_segments.begin() + 3, tiles.dropout_segments.end()));

  auto frames = make_input(26, {{1, 2, 4}, {4, 2, 2}, {1, 1, 2}});
  frames.dropout_segments = {{1, 8}, {2, 4}, {3, 4}, {4, 4}, {5, 4}, {6, 2}};
  const auto frame_passes = split_vision_passes(frames, 12);
  EXPECT_EQ(frame_passes[0].dropout_segments, (std::vector<nn::DropoutSegment>{{1, 8}, {2, 4}}));
  EXPECT_EQ(frame_passes[1].dropout_segments, (std::vector<nn::DropoutSegment>{{3, 4}, {4, 4}, {5, 4}}));
  EXPECT_EQ(frame_passes[2].dropout_segments, (std::vector<nn::DropoutSegment>{{6, 2}}));
}

TEST(VisionPasses, AllowsFramesLargerThanAPass) {
  const auto input = make_input(24, {{3, 2, 4}});
  const auto passes = split_vision_passes(input, 3);
  ASSERT_EQ(passes.size(), 3);
  EXPECT_EQ(passes[1].patch_grids, (std::vector<PatchGrid>{{1, 2, 4}}));
  expect_all_tiles(input, passes);
}

TEST(VisionPasses, PassesHaveModalitiesOfTheirRows) {
  VisionInput input = make_input(7);
  input.modalities = at::arange(7, at::kLong);
  const auto passes = split_vision_passes(input, 3);
  ASSERT_EQ(passes.size(), 3);
  EXPECT_TRUE(at::equal(passes[0].modalities, at::arange(0, 3, at::kLong)));
  EXPECT_TRUE(at::equal(passes[1].modalities, at::arange(3, 6, at::kLong)));
  EXPECT_TRUE(at::equal(passes[2].modalities, at::arange(6, 7, at::kLong)));
  EXPECT_FALSE(split_vision_passes(make_input(7), 3)[1].modalities.defined());
}

}  // namespace
}  // namespace vlmtrain::models
