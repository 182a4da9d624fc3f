#include "vlmtrain/planner/worst_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "vlmtrain/base/error.h"

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
           .images = tiles > 0 ? 1 : 0,
           .pixel_rows = tiles,
           .row = {.height = tiles > 0 ? 64 : 0, .width = tiles > 0 ? 64 : 0}}};
}

data::Outlines outlines_of(const std::vector<NamedShape>& samples) {
  data::Outlines outlines;
  for (const auto& [id, shape] : samples) {
    outlines.ids.push_back(id);
    outlines.shapes.push_back(shape);
  }
  return outlines;
}

std::vector<int64_t> tokens_of(const SampleBatch& batch) {
  std::vector<int64_t> tokens;
  for (const auto& shape : batch.shapes) tokens.push_back(shape.tokens);
  return tokens;
}

TEST(WorstBatchesTest, AreTheLargestByTokensByTilesAndByLabels) {
  const auto batches = worst_batches(outlines_of({sample("small", 10, 1, 1), sample("long", 100, 0, 2),
                                                  sample("pictures", 50, 9, 3), sample("answers", 60, 2, 40)}),
                                     2);
  ASSERT_THAT(batches, SizeIs(3));
  EXPECT_EQ(batches[0].first_id, "long");
  EXPECT_THAT(tokens_of(batches[0]), ElementsAre(100, 60));
  EXPECT_EQ(batches[1].first_id, "pictures");
  EXPECT_THAT(tokens_of(batches[1]), ElementsAre(50, 60));
  EXPECT_EQ(batches[2].first_id, "answers");
  EXPECT_THAT(tokens_of(batches[2]), ElementsAre(60, 50));
}

TEST(WorstBatchesTest, EachIsThereOnce) {
  const auto batches = worst_batches(
      outlines_of({sample("a", 10, 1, 1), sample("b", 20, 2, 2), sample("c", 30, 3, 3), sample("d", 5, 1, 1)}), 3);
  ASSERT_THAT(batches, SizeIs(1));
  EXPECT_EQ(batches[0].first_id, "c");
  EXPECT_THAT(tokens_of(batches[0]), ElementsAre(30, 20, 10));
}

TEST(WorstBatchesTest, TheSameSamplesInAnotherOrderAreAnotherBatch) {
  const auto batches = worst_batches(outlines_of({sample("a", 30, 1, 1), sample("b", 20, 5, 2)}), 2);
  ASSERT_THAT(batches, SizeIs(2)) << "a micro-batch of one takes the first only";
  EXPECT_EQ(batches[0].first_id, "a");
  EXPECT_EQ(batches[1].first_id, "b");
}

TEST(WorstBatchesTest, FewerSamplesThanABatchAreAllOfThem) {
  const auto batches = worst_batches(outlines_of({sample("a", 10, 0, 1), sample("b", 20, 0, 2)}), 16);
  ASSERT_THAT(batches, SizeIs(1));
  EXPECT_THAT(tokens_of(batches[0]), ElementsAre(20, 10));
}

TEST(WorstBatchesTest, OfEqualSamplesTheFirstIsNamed) {
  const auto batches =
      worst_batches(outlines_of({sample("b", 10, 1, 1), sample("a", 10, 1, 1), sample("c", 10, 1, 1)}), 1);
  ASSERT_THAT(batches, SizeIs(1));
  EXPECT_EQ(batches[0].first_id, "b");
}

TEST(WorstBatchesTest, LargerTilesWeighMore) {
  NamedShape few_large = sample("large", 10, 3, 1);
  few_large.shape.row.height = few_large.shape.row.width = 512;
  const auto batches = worst_batches(outlines_of({sample("many", 20, 9, 5), few_large}), 1);
  ASSERT_THAT(batches, SizeIs(2));
  EXPECT_EQ(batches[1].first_id, "large");
}

/// No global batch that the data set can make has more of any of the three.
TEST(WorstBatchesTest, NoOtherBatchHasMore) {
  std::mt19937_64 random(7);
  const auto draw = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1)); };
  for (int round = 0; round < 50; ++round) {
    const int64_t batch_size = 1 + draw(5);
    std::vector<NamedShape> samples;
    for (int i = 0; i < 12; ++i) samples.push_back(sample(std::to_string(i), 1 + draw(99), draw(8), 1 + draw(20)));
    const auto batches = worst_batches(outlines_of(samples), batch_size);
    const auto expect_most = [&](int64_t data::SampleShape::*size) {
      std::vector<int64_t> sizes;
      for (const auto& one : samples) sizes.push_back(one.shape.*size);
      std::ranges::sort(sizes, std::greater());
      int64_t most = 0;
      for (int64_t i = 0; i < batch_size; ++i) most += sizes[static_cast<size_t>(i)];
      int64_t found = 0;
      for (const auto& batch : batches) {
        EXPECT_THAT(batch.shapes, SizeIs(batch_size));
        int64_t sum = 0;
        for (const auto& shape : batch.shapes) sum += shape.*size;
        found = std::max(found, sum);
      }
      EXPECT_EQ(found, most);
    };
    expect_most(&data::SampleShape::tokens);
    expect_most(&data::SampleShape::pixel_rows);
    expect_most(&data::SampleShape::label_tokens);
  }
}

TEST(WorstBatchesTest, ADataSetWithoutSamplesIsAMistakeOfTheCaller) {
  EXPECT_THROW(worst_batches(data::Outlines(), 4), InternalError);
}

}  // namespace
}  // namespace vlmtrain::planner
