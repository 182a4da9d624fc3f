#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "vlmtrain/base/error.h"
#include "vlmtrain/planner/workload.h"

namespace vlmtrain::planner {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

struct NamedShape {
  std::string id;
  data::SampleShape shape;
};

NamedShape sample(const std::string& id, int64_t tokens, int64_t tiles, int64_t label_tokens) {
  return {id,
          {.tokens = tokens,
           .label_tokens = label_tokens,
           .image_tokens = tiles,
           .num_media = tiles > 0 ? 1 : 0,
           .pixel_rows = tiles,
           .row = {.height = tiles > 0 ? 64 : 0, .width = tiles > 0 ? 64 : 0}}};
}

data::SampleIndex make_outlines(const std::vector<NamedShape>& samples) {
  data::SampleIndex sample_index;
  for (const auto& [id, shape] : samples) {
    sample_index.ids.push_back(id);
    sample_index.shapes.push_back(shape);
  }
  return sample_index;
}

std::vector<int64_t> get_tokens(const SampleBatch& batch) {
  std::vector<int64_t> tokens;
  for (const auto& shape : batch.shapes) tokens.push_back(shape.tokens);
  return tokens;
}

TEST(WorstBatchesTest, ContainTheLargestByTokensTilesAndLabels) {
  const auto batches = find_worst_batches(make_outlines({sample("small", 10, 1, 1), sample("long", 100, 0, 2),
                                                         sample("pictures", 50, 9, 3), sample("answers", 60, 2, 40)}),
                                          2);
  ASSERT_THAT(batches, SizeIs(3));
  EXPECT_EQ(batches[0].first_sample_id, "long");
  EXPECT_THAT(get_tokens(batches[0]), ElementsAre(100, 60));
  EXPECT_EQ(batches[1].first_sample_id, "pictures");
  EXPECT_THAT(get_tokens(batches[1]), ElementsAre(50, 60));
  EXPECT_EQ(batches[2].first_sample_id, "answers");
  EXPECT_THAT(get_tokens(batches[2]), ElementsAre(60, 50));
}

TEST(WorstBatchesTest, AreDistinct) {
  const auto batches = find_worst_batches(
      make_outlines({sample("a", 10, 1, 1), sample("b", 20, 2, 2), sample("c", 30, 3, 3), sample("d", 5, 1, 1)}), 3);
  ASSERT_THAT(batches, SizeIs(1));
  EXPECT_EQ(batches[0].first_sample_id, "c");
  EXPECT_THAT(get_tokens(batches[0]), ElementsAre(30, 20, 10));
}

TEST(WorstBatchesTest, TheSameSamplesInAnotherOrderAreAnotherBatch) {
  const auto batches = find_worst_batches(make_outlines({sample("a", 30, 1, 1), sample("b", 20, 5, 2)}), 2);
  ASSERT_THAT(batches, SizeIs(2)) << "a micro-batch of one takes the first only";
  EXPECT_EQ(batches[0].first_sample_id, "a");
  EXPECT_EQ(batches[1].first_sample_id, "b");
}

TEST(WorstBatchesTest, FewerSamplesThanABatchAreAllOfThem) {
  const auto batches = find_worst_batches(make_outlines({sample("a", 10, 0, 1), sample("b", 20, 0, 2)}), 16);
  ASSERT_THAT(batches, SizeIs(1));
  EXPECT_THAT(get_tokens(batches[0]), ElementsAre(20, 10));
}

TEST(WorstBatchesTest, OfEqualSamplesTheFirstIsSelected) {
  const auto batches =
      find_worst_batches(make_outlines({sample("b", 10, 1, 1), sample("a", 10, 1, 1), sample("c", 10, 1, 1)}), 1);
  ASSERT_THAT(batches, SizeIs(1));
  EXPECT_EQ(batches[0].first_sample_id, "b");
}

TEST(WorstBatchesTest, LargerTilesWeighMore) {
  NamedShape few_large = sample("large", 10, 3, 1);
  few_large.shape.row.height = few_large.shape.row.width = 512;
  const auto batches = find_worst_batches(make_outlines({sample("many", 20, 9, 5), few_large}), 1);
  ASSERT_THAT(batches, SizeIs(2));
  EXPECT_EQ(batches[1].first_sample_id, "large");
}

/// No global batch that the data set can make has more of any of the three.
TEST(WorstBatchesTest, NoOtherBatchHasMore) {
  std::mt19937_64 random(7);
  const auto sample_up_to = [&](int64_t max_value) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(max_value + 1));
  };
  for (int round = 0; round < 50; ++round) {
    const int64_t batch_size = 1 + sample_up_to(5);
    std::vector<NamedShape> samples;
    for (int i = 0; i < 12; ++i)
      samples.push_back(sample(std::to_string(i), 1 + sample_up_to(99), sample_up_to(8), 1 + sample_up_to(20)));
    const auto batches = find_worst_batches(make_outlines(samples), batch_size);
    const auto expect_most = [&](int64_t data::SampleShape::*size) {
      std::vector<int64_t> sizes;
      for (const auto& named_shape : samples) sizes.push_back(named_shape.shape.*size);
      std::ranges::sort(sizes, std::greater());
      int64_t max_sum = 0;
      for (int64_t i = 0; i < batch_size; ++i) max_sum += sizes[static_cast<size_t>(i)];
      int64_t found_sum = 0;
      for (const auto& batch : batches) {
        EXPECT_THAT(batch.shapes, SizeIs(batch_size));
        int64_t sum = 0;
        for (const auto& shape : batch.shapes) sum += shape.*size;
        found_sum = std::max(found_sum, sum);
      }
      EXPECT_EQ(found_sum, max_sum);
    };
    expect_most(&data::SampleShape::tokens);
    expect_most(&data::SampleShape::pixel_rows);
    expect_most(&data::SampleShape::label_tokens);
  }
}

TEST(WorstBatchesTest, ADataSetWithoutSamplesIsAMistakeOfTheCaller) {
  EXPECT_THROW(find_worst_batches(data::SampleIndex(), 4), InternalError);
}

}  // namespace
}  // namespace vlmtrain::planner
