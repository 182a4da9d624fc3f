#include "vlmtrain/data/sample/sample_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;

/// Of few kinds of media, so that several samples have the same.
SampleShape make_shape(RandomStream& random) {
  const auto below = [&random](uint64_t end) { return static_cast<int64_t>(random.uniform(end)); };
  SampleShape shape{.tokens = 100 + below(50), .label_tokens = below(50), .num_media = below(3)};
  shape.pixel_rows = shape.num_media * (1 + below(2));
  shape.row = {.height = shape.num_media > 0 ? 28 : 0, .width = shape.num_media > 0 ? 14 + 14 * below(2) : 0};
  for (int64_t i = 0; i < shape.num_media; ++i)
    shape.grids.push_back({.frames = 1, .rows = 2 + below(2), .columns = 2});
  return shape;
}

TEST(SampleShapesTest, ReturnsStoredShapes) {
  RandomStream random(3);
  constexpr int64_t kSamples = 500;
  SampleShapes shapes(kSamples);
  std::vector<std::optional<SampleShape>> expected(kSamples);
  for (int i = 0; i < 1000; ++i) {
    const auto index = static_cast<int64_t>(random.uniform(kSamples));
    auto& shape = expected[static_cast<size_t>(index)];
    if (random.uniform(4) == 0) {
      shapes.remove(index);
      shape.reset();
    } else {
      shape = make_shape(random);
      shapes.set(index, *shape);
    }
  }
  int64_t known = 0;
  for (int64_t index = 0; index < kSamples; ++index) {
    const auto& shape = expected[static_cast<size_t>(index)];
    EXPECT_EQ(shapes[index], shape);
    EXPECT_EQ(shapes.has(index), shape.has_value());
    known += shape ? 1 : 0;
  }
  EXPECT_EQ(shapes.num_known(), known);
  SampleShapes copy = shapes;
  EXPECT_TRUE(copy == shapes);
  copy.push_back(std::nullopt);
  EXPECT_FALSE(copy == shapes);
}

TEST(SampleShapesTest, ThrowsForUnknownShapes) {
  EXPECT_THROW(SampleShapes(3).at(1), InternalError);
  EXPECT_THROW(SampleShapes(3).set(1, {.tokens = int64_t{1} << 31U}), InternalError);
}

TEST(FindLargestTest, ReturnsTheLargestFirstAndKeepsOrderOfEqualOnes) {
  SampleShapes shapes;
  for (const int64_t tokens : {5, 9, 2, 9, 7}) shapes.push_back(SampleShape{.tokens = tokens});
  shapes.push_back(std::nullopt);
  EXPECT_THAT(find_largest(shapes, token_sort_key, 3), ElementsAre(1, 3, 4));
  EXPECT_THAT(find_largest(shapes, token_sort_key, 9), ElementsAre(1, 3, 4, 0, 2));
  EXPECT_THAT(find_largest(shapes, token_sort_key, 1), ElementsAre(1));
  EXPECT_THAT(find_largest(shapes, token_sort_key, 0), ElementsAre());
}

}  // namespace
}  // namespace vlmtrain::data
