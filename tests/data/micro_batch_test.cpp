#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::data {
namespace {

std::vector<int64_t> get_values(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.scalar_type(), at::kLong);
  EXPECT_EQ(tensor.dim(), 1);
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

Sample text_sample(std::vector<int64_t> token_ids, std::vector<char> label_mask) {
  Sample sample;
  sample.id = "text";
  sample.token_ids = std::move(token_ids);
  sample.label_mask = std::move(label_mask);
  return sample;
}

Sample image_sample(int64_t tiles, int value, int64_t size = 4) {
  Sample sample = text_sample({9, 9, 50, 51}, {0, 0, 0, 1});
  sample.id = "image";
  sample.image_token_positions = {0, 1};
  sample.pixel_values = at::full({tiles, 3, size, size}, value, at::kByte);
  sample.num_images = 1;
  return sample;
}

TEST(Collate, ConcatenatesSamples) {
  const MicroBatch batch = collate(std::vector{text_sample({10, 11, 12}, {0, 1, 1}), text_sample({20}, {0}),
                                               text_sample({30, 31, 32, 33}, {0, 1, 0, 1})});
  EXPECT_EQ(get_values(batch.token_ids), (std::vector<int64_t>{10, 11, 12, 20, 30, 31, 32, 33}));
  EXPECT_EQ(get_values(batch.position_ids), (std::vector<int64_t>{0, 1, 2, 0, 0, 1, 2, 3}));
  EXPECT_EQ(batch.segments.lengths, (std::vector<int64_t>{3, 1, 4}));
  EXPECT_EQ(batch.segments.max_length, 4);
  EXPECT_EQ(batch.segments.offsets.scalar_type(), at::kInt);
  EXPECT_EQ(get_values(batch.segments.offsets.to(at::kLong)), (std::vector<int64_t>{0, 3, 4, 8}));
  EXPECT_EQ(batch.tokens(), 8);
  EXPECT_EQ(batch.samples, 3);
  EXPECT_EQ(batch.num_media, 0);
}

Sample volume_sample(std::vector<int64_t> modalities) {
  Sample sample = text_sample({9, 9, 50, 51}, {0, 0, 0, 1});
  sample.image_token_positions = {0, 1};
  const int64_t volumes = std::ssize(modalities);
  sample.pixel_values = at::full({volumes, 1, 2, 4, 6}, static_cast<double>(modalities.front()));
  sample.modalities = std::move(modalities);
  sample.num_volumes = volumes;
  return sample;
}

TEST(Collate, KeepsModalitiesWithTheirVolumes) {
  const MicroBatch batch =
      collate(std::vector{volume_sample({2}), text_sample({1, 2, 3}, {0, 0, 1}), volume_sample({1, 0})});
  EXPECT_EQ(get_values(batch.modalities), (std::vector<int64_t>{2, 1, 0}));
  EXPECT_EQ(batch.pixel_values.sizes(), (at::IntArrayRef{3, 1, 2, 4, 6}));
  EXPECT_EQ(batch.pixel_values[0].mean().item<double>(), 2);
  EXPECT_EQ(batch.pixel_values[2].mean().item<double>(), 1);
  EXPECT_EQ(batch.num_volumes, 3);
  EXPECT_EQ(batch.num_media, 3);
  // Samples with known features and without pixels need no modalities.
  Sample known_features = volume_sample({2});
  known_features.pixel_values = at::Tensor();
  EXPECT_FALSE(collate(std::vector{known_features}).modalities.defined());
}

TEST(Collate, RejectsVolumesWithAndWithoutModalities) {
  Sample volume_without_modality = volume_sample({0});
  volume_without_modality.modalities.clear();
  EXPECT_THROW(collate(std::vector{volume_sample({2}), volume_without_modality}), InternalError);
}

TEST(Collate, PredictsALabelFromTheRowBeforeIt) {
  const MicroBatch batch =
      collate(std::vector{text_sample({10, 11, 12}, {0, 1, 1}), text_sample({30, 31, 32, 33}, {0, 1, 0, 1})});
  EXPECT_EQ(get_values(batch.label_positions), (std::vector<int64_t>{0, 1, 3, 5}));
  EXPECT_EQ(get_values(batch.labels), (std::vector<int64_t>{11, 12, 31, 33}));
  EXPECT_EQ(batch.label_tokens(), 4);
}

TEST(Collate, ImagePositionsSkipSamplesWithoutImages) {
  const std::vector samples{text_sample({1, 2, 3}, {0, 0, 1}), image_sample(2, 7), text_sample({4, 5}, {0, 1}),
                            image_sample(1, 8)};
  const MicroBatch batch = collate(samples);
  EXPECT_EQ(get_values(batch.image_token_positions), (std::vector<int64_t>{3, 4, 9, 10}));
  EXPECT_EQ(get_values(batch.token_ids.index_select(0, batch.image_token_positions)),
            (std::vector<int64_t>{9, 9, 9, 9}));
  EXPECT_EQ(batch.num_media, 2);
  ASSERT_EQ(batch.pixel_values.sizes(), (std::vector<int64_t>{3, 3, 4, 4}));
  EXPECT_TRUE(at::equal(batch.pixel_values, at::cat({samples[1].pixel_values, samples[3].pixel_values})));
}

TEST(Collate, KeepsDtypeAndAxesOfVolumes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kShort}) {
    Sample volume = text_sample({9, 9, 50, 51}, {0, 0, 0, 1});
    volume.image_token_positions = {0, 1};
    volume.pixel_values = at::full({1, 1, 3, 5, 4}, 7, dtype);
    volume.add_medium(MediaKind::kVolume);
    const MicroBatch batch = collate(std::vector{volume, volume}).to(at::kCPU);
    EXPECT_TRUE(at::equal(batch.pixel_values, at::full({2, 1, 3, 5, 4}, 7, dtype)));
    EXPECT_EQ(batch.num_media, 2);
    EXPECT_EQ(batch.pixel_dropout_segments.size(), 2U);
    EXPECT_THROW(collate(std::vector{volume, image_sample(1, 7)}), InternalError);
    Sample byte_volume = volume;
    byte_volume.pixel_values = volume.pixel_values.to(at::kByte);
    EXPECT_THROW(collate(std::vector{volume, byte_volume}), InternalError);
  }
}

TEST(Collate, HasNoTilesWithoutImages) {
  const MicroBatch batch = collate(std::vector{text_sample({1, 2}, {0, 1})});
  EXPECT_FALSE(batch.pixel_values.defined());
  EXPECT_EQ(batch.image_token_positions.numel(), 0);
  const MicroBatch copy = batch.to(at::kCPU);
  EXPECT_FALSE(copy.pixel_values.defined());
  EXPECT_TRUE(at::equal(copy.token_ids, batch.token_ids));
  EXPECT_EQ(copy.tokens(), 2);
}

std::vector<int64_t> get_unit_sizes(const std::vector<nn::DropoutSegment>& units) {
  std::vector<int64_t> sizes;
  for (const auto& unit : units) sizes.push_back(unit.row_weight);
  return sizes;
}

TEST(Collate, DropoutUnitsFollowTheSample) {
  Sample text = text_sample({1, 2, 3}, {0, 0, 1});
  Sample tiles = image_sample(2, 7);
  Sample frames = image_sample(10, 7);
  frames.patch_grids = {{2, 2, 2}, {1, 1, 2}};
  text.seed = 5;
  tiles.seed = 6;
  frames.seed = 7;
  const MicroBatch tile_batch = collate(std::vector{text, tiles, text});
  EXPECT_EQ(tile_batch.text_dropout_segments, (std::vector<nn::DropoutSegment>{{5, 3}, {6, 4}, {5, 3}}));
  EXPECT_EQ(get_unit_sizes(tile_batch.pixel_dropout_segments), (std::vector<int64_t>{1, 1}));
  EXPECT_NE(tile_batch.pixel_dropout_segments[0].seed, tile_batch.pixel_dropout_segments[1].seed);
  EXPECT_EQ(collate(std::vector{tiles}).pixel_dropout_segments, tile_batch.pixel_dropout_segments);

  const MicroBatch frame_batch = collate(std::vector{text, frames});
  EXPECT_EQ(get_unit_sizes(frame_batch.pixel_dropout_segments), (std::vector<int64_t>{4, 4, 2}));
  frames.seed = 8;
  EXPECT_NE(collate(std::vector{frames}).pixel_dropout_segments[2].seed, frame_batch.pixel_dropout_segments[2].seed);
}

TEST(Collate, RejectsInvalidSamples) {
  EXPECT_THROW(collate({}), InternalError);
  EXPECT_THROW(collate(std::vector{text_sample({1, 2}, {1, 1})}), InternalError);  // nothing predicts the first token
  EXPECT_THROW(collate(std::vector{text_sample({1, 2}, {0})}), InternalError);
  EXPECT_THROW(collate(std::vector{image_sample(1, 7, 4), image_sample(1, 7, 8)}), InternalError);
  Sample without_image_tokens = image_sample(1, 7);
  without_image_tokens.image_token_positions.clear();
  EXPECT_THROW(collate(std::vector{without_image_tokens}), InternalError);
}

TEST(Collate, TilesAreOptionalWithKnownFeatures) {
  Sample without_tiles = image_sample(1, 7);
  const auto num_positions = without_tiles.image_token_positions.size();
  without_tiles.pixel_values = at::Tensor();
  const MicroBatch batch = collate(std::vector{without_tiles});
  EXPECT_FALSE(batch.pixel_values.defined());
  EXPECT_EQ(batch.image_token_positions.numel(), static_cast<int64_t>(num_positions));
}

TEST(Collate, PositionsHaveAxesIfASampleHasThem) {
  Sample sample = image_sample(8, 7);
  sample.patch_grids = {{1, 2, 4}};
  sample.position_ids = {0, 0, 1, 2, 0, 0, 1, 2, 0, 1, 2, 3};
  const MicroBatch batch = collate(std::vector{text_sample({10, 11, 12}, {0, 1, 1}), sample});
  ASSERT_EQ(batch.position_ids.sizes(), (std::vector<int64_t>{3, 7}));
  EXPECT_EQ(get_values(batch.position_ids.flatten()), (std::vector<int64_t>{0, 1, 2, 0, 0, 1, 2,  //
                                                                            0, 1, 2, 0, 0, 1, 2,  //
                                                                            0, 1, 2, 0, 1, 2, 3}));
  EXPECT_EQ(batch.patch_grids, sample.patch_grids);
}

TEST(Collate, RejectsGridsThatDoNotMatchTheTiles) {
  Sample sample = image_sample(7, 7);
  sample.patch_grids = {{1, 2, 4}};
  EXPECT_THROW(collate(std::vector{sample}), InternalError);
  sample.patch_grids = {{1, 1, 7}};
  EXPECT_NO_THROW(collate(std::vector{sample}));
  EXPECT_THROW(collate(std::vector{sample, image_sample(2, 7)}), InternalError);
  sample.position_ids = {0, 1, 2};
  EXPECT_THROW(collate(std::vector{sample}), InternalError);
}

}  // namespace
}  // namespace vlmtrain::data
