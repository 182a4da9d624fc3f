#include "vlmtrain/train/sample_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "parity/case.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {
namespace {

planner::Workload workload_with(data::SampleShape shape) {
  return {.candidates = {{.shapes = {{.tokens = 10}, std::move(shape)}, .first_id = "a"}}, .global_batch_size = 2};
}

TEST(SampleLimitsTest, CountThePixelsOfTiles) {
  const auto workload = workload_with(
      {.tokens = 90, .image_tokens = 40, .images = 2, .pixel_rows = 9, .row = {.height = 10, .width = 20}});
  EXPECT_EQ(most_pixels(workload), 5 * 200) << "one of the two images has five tiles or more";
  EXPECT_EQ(pixel_unit(workload), 200);
  EXPECT_EQ(least_pixels(workload), 200);
  EXPECT_EQ(most_pixels(workload_with({.tokens = 90})), 0);
}

TEST(SampleLimitsTest, CountThePixelsOfNativeResolution) {
  data::SampleShape shape{.tokens = 90,
                          .image_tokens = 12,
                          .images = 2,
                          .pixel_rows = 48,
                          .row = {.height = 1, .width = 14},
                          .grids = {{.rows = 4, .columns = 8}, {.rows = 4, .columns = 4}}};
  const auto workload = workload_with(shape);
  EXPECT_EQ(most_pixels(workload), 4 * 8 * 14 * 14);
  EXPECT_EQ(pixel_unit(workload), 4 * 14 * 14) << "the square of an image token";
  EXPECT_EQ(least_pixels(workload), 16 * 4 * 14 * 14);
}

/// The records of a case, under a processor's real limits.
class MeasuredLimitsTest : public testing::Test {
 protected:
  MeasuredLimitsTest() {
    config_.model.path = source_.checkpoint();
    config_.data.train = source_.checkpoint().parent_path() / "conversations.json";
    config_.data.image_root = source_.checkpoint().parent_path() / "images";
    config_.data.num_workers = 1;
    config_.training.global_batch_size = 2;
    workload_ = look_at_data_to_plan(records_, *source_.load_processor(), config_).workload;
    limits_ = sample_limits(records_, config_, workload_);
  }

  const planner::SampleLimit& limit(const std::string& key) const {
    for (const auto& limit : limits_) {
      if (limit.form.starts_with(key + "=")) return limit;
    }
    throw InternalError("no limit " + key);
  }

  static int64_t most_tokens(const planner::Workload& workload) {
    int64_t most = 0;
    for (const auto& batch : workload.candidates) {
      for (const auto& shape : batch.shapes) most = std::max(most, shape.tokens);
    }
    return most;
  }

  const parity::Case source_{"mixed_batch"};
  const data::DataSet records_{{{.source = {}, .records = std::make_shared<io::RecordList>(source_.records())}}};
  Config config_;
  planner::Workload workload_;
  std::vector<planner::SampleLimit> limits_;
};

TEST_F(MeasuredLimitsTest, FewerPixelsMakeTheLargestPictureSmaller) {
  const auto& pixels = limit("data.image_max_pixels");
  for (const bool all : {true, false}) {
    SCOPED_TRACE(all);
    const auto as_now = pixels.measure(pixels.now, all);
    ASSERT_TRUE(as_now);
    EXPECT_EQ(most_pixels(as_now->workload), pixels.now);
    EXPECT_EQ(most_tokens(as_now->workload), most_tokens(workload_));
    const auto least = pixels.measure(pixels.least(), all);
    ASSERT_TRUE(least);
    EXPECT_LT(most_pixels(least->workload), pixels.now);
    EXPECT_LT(most_tokens(least->workload), most_tokens(workload_));
    EXPECT_EQ(least->left_out, 0);
    EXPECT_EQ(least->samples, 4);
  }
}

TEST_F(MeasuredLimitsTest, FewerImagesLeaveSamplesOut) {
  const auto& images = limit("data.max_images_per_sample");
  EXPECT_EQ(images.now, 2);
  EXPECT_EQ(images.least(), 1);
  EXPECT_EQ(images.measure(2, true)->left_out, 0);
  const auto single = images.measure(1, true);
  ASSERT_TRUE(single);
  EXPECT_EQ(single->left_out, 1);
  EXPECT_EQ(single->samples, 4);
  EXPECT_LT(most_tokens(single->workload), most_tokens(workload_));
}

TEST_F(MeasuredLimitsTest, HalfOfTheSamplesAreNoLongerThanTheLeastLength) {
  config_.data.on_too_long = data::LongSamplePolicy::kDrop;
  limits_ = sample_limits(records_, config_, workload_);
  const auto& length = limit("data.max_length");
  EXPECT_EQ(length.now, most_tokens(workload_));
  const auto half = length.measure(length.least(), true);
  ASSERT_TRUE(half);
  EXPECT_EQ(half->left_out, 1) << "of four, the third longest";
  EXPECT_EQ(most_tokens(half->workload), length.least());
  EXPECT_FALSE(length.measure(1, true)) << "nothing is left";
}

TEST_F(MeasuredLimitsTest, AShorterLengthMakesPicturesSmaller) {
  const auto& length = limit("data.max_length");
  const auto shrunk = length.measure(length.now - 1, true);
  ASSERT_TRUE(shrunk);
  EXPECT_EQ(shrunk->left_out, 0);
  EXPECT_LT(most_tokens(shrunk->workload), length.now);
  EXPECT_FALSE(length.measure(1, true)) << "nothing is left";
}

}  // namespace
}  // namespace vlmtrain::train
