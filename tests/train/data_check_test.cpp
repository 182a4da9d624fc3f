#include "train/data_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {
namespace {

/// What a data set's samples are like under a configuration, with a cache from one look to the next.
class DataCheckTest : public testing::Test {
 protected:
  DataCheckTest() {
    config_.model.path = source_.checkpoint();
    config_.data.train = source_.checkpoint().parent_path() / "conversations.json";
    config_.data.image_root = source_.checkpoint().parent_path() / "images";
  }

  data::Outlines look(const std::filesystem::path& cache) const {
    const auto processor = models::load_processor(config_.model.path, processor_settings(config_.data));
    return look_at_data(io::RecordList(source_.records()), *processor, config_, config_.data.train.name(), cache);
  }

  std::filesystem::path cache() const { return folder_.path() / "data_check.jsonl"; }

  Config config_;

 private:
  const parity::Case source_{"mixed_batch"};
  const parity::TemporaryFolder folder_;
};

TEST_F(DataCheckTest, WhatIsKnownIsTakenFromTheCache) {
  const auto first = look(cache());
  EXPECT_EQ(first.from_cache, 0);
  EXPECT_EQ(first.usable(), 4);
  const auto second = look(cache());
  EXPECT_EQ(second.from_cache, 4);
  EXPECT_EQ(second.shapes, first.shapes);
}

TEST_F(DataCheckTest, OtherSettingsMakeOtherSamples) {
  const auto large = look(cache());
  config_.data.image_max_pixels = 32 * 32;
  const auto small = look(cache());
  EXPECT_EQ(small.from_cache, 0);
  EXPECT_NE(small.shapes, large.shapes);
  EXPECT_EQ(small.shapes, look(/*cache=*/{}).shapes);
}

TEST_F(DataCheckTest, NothingIsKeptOfALookThatWasNotToBe) {
  config_.data.check_at_start = false;
  EXPECT_EQ(look(cache()).usable(), 4);
  EXPECT_FALSE(std::filesystem::exists(cache()));
}

}  // namespace
}  // namespace vlmtrain::train
