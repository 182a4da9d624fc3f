#include "vlmtrain/train/sample_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "parity/case.h"
#include "vlmtrain/data/data_set.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

namespace {

planner::Workload make_workload(data::SampleShape shape) {
  return {.worst_batches = {{.shapes = {{.tokens = 10}, std::move(shape)}, .first_sample_id = "a"}},
          .global_batch_size = 2};
}

TEST(SampleLimitsTest, CountPixelsOfTiles) {
  const auto workload = make_workload(
      {.tokens = 90, .image_tokens = 40, .num_images = 2, .pixel_rows = 9, .row = {.height = 10, .width = 20}});
  EXPECT_EQ(compute_max_image_pixels(workload), 5 * 200) << "one of the two images has five tiles or more";
  EXPECT_EQ(compute_pixel_granularity(workload), 200);
  EXPECT_EQ(compute_min_suggested_image_pixels(workload), 200);
  EXPECT_EQ(compute_max_image_pixels(make_workload({.tokens = 90})), 0);
}

TEST(SampleLimitsTest, CountPixelsOfNativeResolution) {
  data::SampleShape shape{.tokens = 90,
                          .image_tokens = 12,
                          .num_images = 2,
                          .pixel_rows = 48,
                          .row = {.height = 1, .width = 14},
                          .patch_grids = {{.rows = 4, .columns = 8}, {.rows = 4, .columns = 4}}};
  const auto workload = make_workload(shape);
  EXPECT_EQ(compute_max_image_pixels(workload), 4 * 8 * 14 * 14);
  EXPECT_EQ(compute_pixel_granularity(workload), 4 * 14 * 14) << "the square of an image token";
  EXPECT_EQ(compute_min_suggested_image_pixels(workload), 16 * 4 * 14 * 14);
}

/// The records of a parity case with a processor's real limits.
class MeasuredSampleLimitsTest : public testing::Test {
 protected:
  MeasuredSampleLimitsTest() {
    config_.model.path = source_.checkpoint();
    config_.data.train = source_.checkpoint().parent_path() / "conversations.json";
    config_.data.image_root = source_.checkpoint().parent_path() / "images";
    config_.data.num_workers = 1;
    config_.training.global_batch_size = 2;
    workload_ = make_planning_inputs(*records_, *source_.load_processor(), config_).workload;
    limits_ = make_sample_limits(records_, config_, workload_);
  }

  const planner::SampleLimit& find_limit(const std::string& key) const {
    for (const auto& limit : limits_) {
      if (limit.argument_format.starts_with(key + "=")) return limit;
    }
    throw InternalError("no limit " + key);
  }

  static int64_t compute_max_tokens(const planner::Workload& workload) {
    int64_t max_tokens = 0;
    for (const auto& batch : workload.worst_batches) {
      for (const auto& shape : batch.shapes) max_tokens = std::max(max_tokens, shape.tokens);
    }
    return max_tokens;
  }

  const parity::Case source_{"mixed_batch"};
  const std::shared_ptr<const data::DataSet> records_ =
      std::make_shared<data::DataSet>(std::vector<data::DataSet::SourceRecords>{
          {.source = {}, .records = std::make_shared<io::InMemoryRecords>(source_.records())}});
  Config config_;
  planner::Workload workload_;
  std::vector<planner::SampleLimit> limits_;
};

TEST_F(MeasuredSampleLimitsTest, FewerPixelsShrinkTheLargestImage) {
  const auto& pixels = find_limit("data.image_max_pixels");
  for (const bool all : {true, false}) {
    SCOPED_TRACE(all);
    const auto unchanged = pixels.measure(pixels.max_useful_value, all);
    ASSERT_TRUE(unchanged);
    EXPECT_EQ(compute_max_image_pixels(unchanged->workload), pixels.max_useful_value);
    EXPECT_EQ(compute_max_tokens(unchanged->workload), compute_max_tokens(workload_));
    const auto smallest = pixels.measure(pixels.find_min(), all);
    ASSERT_TRUE(smallest);
    EXPECT_LT(compute_max_image_pixels(smallest->workload), pixels.max_useful_value);
    EXPECT_LT(compute_max_tokens(smallest->workload), compute_max_tokens(workload_));
    EXPECT_EQ(smallest->num_dropped, 0);
    EXPECT_EQ(smallest->num_samples, 4);
  }
}

TEST_F(MeasuredSampleLimitsTest, FewerImagesDropSamples) {
  const auto& images = find_limit("data.max_images_per_sample");
  EXPECT_EQ(images.max_useful_value, 2);
  EXPECT_EQ(images.find_min(), 1);
  EXPECT_EQ(images.measure(2, true)->num_dropped, 0);
  const auto single_image = images.measure(1, true);
  ASSERT_TRUE(single_image);
  EXPECT_EQ(single_image->num_dropped, 1);
  EXPECT_EQ(single_image->num_samples, 4);
  EXPECT_LT(compute_max_tokens(single_image->workload), compute_max_tokens(workload_));
}

TEST_F(MeasuredSampleLimitsTest, MinLengthIsTheMedian) {
  config_.data.on_too_long = data::LongSamplePolicy::kDrop;
  limits_ = make_sample_limits(records_, config_, workload_);
  const auto& length = find_limit("data.max_length");
  EXPECT_EQ(length.max_useful_value, compute_max_tokens(workload_));
  const auto half_of_samples = length.measure(length.find_min(), true);
  ASSERT_TRUE(half_of_samples);
  EXPECT_EQ(half_of_samples->num_dropped, 1) << "of four, the third longest";
  EXPECT_EQ(compute_max_tokens(half_of_samples->workload), length.find_min());
  EXPECT_FALSE(length.measure(1, true)) << "nothing is left";
}

TEST_F(MeasuredSampleLimitsTest, ShorterLengthShrinksImages) {
  const auto& length = find_limit("data.max_length");
  const auto shrunk = length.measure(length.max_useful_value - 1, true);
  ASSERT_TRUE(shrunk);
  EXPECT_EQ(shrunk->num_dropped, 0);
  EXPECT_LT(compute_max_tokens(shrunk->workload), length.max_useful_value);
  EXPECT_FALSE(length.measure(1, true)) << "nothing is left";
}

}  // namespace

}  // namespace vlmtrain::train
