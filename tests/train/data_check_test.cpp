#include "train/data_check.h"

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

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

  data::Outlines look(const std::filesystem::path& cache, const std::vector<io::Record>& records) const {
    const auto processor = models::load_processor(config_.model.path, processor_settings(config_.data));
    return look_at_data(io::RecordList(records), *processor, config_, config_.data.train.name(), cache);
  }
  data::Outlines look(const std::filesystem::path& cache) const { return look(cache, records()); }

  std::vector<io::Record> records() const { return source_.records(); }
  std::filesystem::path folder() const { return folder_.path(); }
  std::filesystem::path cache() const { return folder() / "data_check.jsonl"; }

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

TEST_F(DataCheckTest, APipeInTheSharedCachesPlaceIsNotWaitedFor) {
  const parity::TemporaryFolder user;
  setenv("VLMTRAIN_CACHE", user.path().c_str(), 1);
  std::vector<io::Record> many(10'000, records().front());
  look(cache(), many);
  const auto file = std::filesystem::directory_iterator(user.path() / "outlines")->path();
  std::filesystem::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  std::filesystem::remove(cache());
  EXPECT_EQ(look(cache(), many).from_cache, 0);
  unsetenv("VLMTRAIN_CACHE");
}

TEST_F(DataCheckTest, ALargeDataSetIsKnownToOtherRunsAndToPlans) {
  const parity::TemporaryFolder user;
  setenv("VLMTRAIN_CACHE", user.path().c_str(), 1);
  std::vector<io::Record> many;
  for (int64_t i = 0; i < 10'000; ++i) {
    many.push_back(records().at(static_cast<size_t>(i % 4)));
    many.back().id = "sample-" + std::to_string(i);
  }
  const auto first = look(cache(), many);
  EXPECT_EQ(first.from_cache, 0);
  for (const auto& known : {look(folder() / "another-run.jsonl", many), look(/*cache=*/{}, many)}) {
    EXPECT_EQ(known.from_cache, 10'000);
    EXPECT_EQ(known.shapes, first.shapes);
  }
  many.pop_back();
  EXPECT_EQ(look(folder() / "too-few.jsonl", many).from_cache, 0) << "it is looked at in no time";
  unsetenv("VLMTRAIN_CACHE");
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
