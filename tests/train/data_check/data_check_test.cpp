#include "train/data_check/data_check.h"

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "io/parquet_test.h"
#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

namespace {

/// The check of a data set under a configuration, with a cache between checks.
class DataCheckTest : public testing::Test {
 protected:
  DataCheckTest() {
    config_.model.path = source_.checkpoint();
    config_.data.train = source_.checkpoint().parent_path() / "conversations.json";
    config_.data.image_root = source_.checkpoint().parent_path() / "images";
  }

  data::SampleIndex check(const std::filesystem::path& cache, const std::vector<io::Record>& records) const {
    const auto processor = models::load_processor(config_.model.path, make_processor_settings(config_.data));
    return check_data(io::InMemoryRecords(records), *processor, config_, config_.data.train.name(), cache);
  }
  data::SampleIndex check(const std::filesystem::path& cache) const { return check(cache, records()); }

  std::vector<io::Record> records() const { return source_.records(); }
  std::filesystem::path folder() const { return folder_.path(); }
  std::filesystem::path cache() const { return folder() / "data_check.jsonl"; }

  Config config_;

 private:
  const parity::Case source_{"mixed_batch"};
  const parity::TemporaryFolder folder_;
};

TEST_F(DataCheckTest, ReadsResultsFromTheCache) {
  const auto first = check(cache());
  EXPECT_EQ(first.num_cached_shapes, 0);
  EXPECT_EQ(first.num_usable_samples(), 4);
  const auto second = check(cache());
  EXPECT_EQ(second.num_cached_shapes, 4);
  EXPECT_EQ(second.shapes, first.shapes);
}

TEST_F(DataCheckTest, IgnoresAPipeInPlaceOfTheSharedCache) {
  const parity::TemporaryFolder user_cache;
  setenv("VLMTRAIN_CACHE", user_cache.path().c_str(), 1);
  std::vector<io::Record> many_records(10'000, records().front());
  check(cache(), many_records);
  const auto file = std::filesystem::directory_iterator(user_cache.path() / "outlines")->path();
  std::filesystem::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  std::filesystem::remove(cache());
  EXPECT_EQ(check(cache(), many_records).num_cached_shapes, 0);
  unsetenv("VLMTRAIN_CACHE");
}

TEST_F(DataCheckTest, SharesResultsOfALargeDatasetBetweenRuns) {
  const parity::TemporaryFolder user_cache;
  setenv("VLMTRAIN_CACHE", user_cache.path().c_str(), 1);
  std::vector<io::Record> many_records;
  for (int64_t i = 0; i < 10'000; ++i) {
    many_records.push_back(records().at(static_cast<size_t>(i % 4)));
    many_records.back().id = "sample-" + std::to_string(i);
  }
  const auto first = check(cache(), many_records);
  EXPECT_EQ(first.num_cached_shapes, 0);
  for (const auto& cached : {check(folder() / "another-run.jsonl", many_records), check(/*cache=*/{}, many_records)}) {
    EXPECT_EQ(cached.num_cached_shapes, 10'000);
    EXPECT_EQ(cached.shapes, first.shapes);
  }
  many_records.pop_back();
  EXPECT_EQ(check(folder() / "too-few.jsonl", many_records).num_cached_shapes, 0) << "it is looked at in no time";
  unsetenv("VLMTRAIN_CACHE");
}

TEST_F(DataCheckTest, OtherSettingsMakeOtherSamples) {
  const auto large = check(cache());
  config_.data.image_max_pixels = 32 * 32;
  const auto small = check(cache());
  EXPECT_EQ(small.num_cached_shapes, 0);
  EXPECT_NE(small.shapes, large.shapes);
  EXPECT_EQ(small.shapes, check(/*cache=*/{}).shapes);
}

TEST_F(DataCheckTest, WritesNoCacheWithoutCheck) {
  config_.data.check_at_start = false;
  EXPECT_EQ(check(cache()).num_usable_samples(), 4);
  EXPECT_FALSE(std::filesystem::exists(cache()));
}

using testing::AllOf;
using testing::HasSubstr;

using RowGroupLimit = io::ParquetTest;

TEST_F(RowGroupLimit, ComparesTheLargestGroupOfOpenFiles) {
  constexpr double kTinyLimitGb = 1e-6;
  check_row_group_memory(kTinyLimitGb);  // no file is open
  const auto small = io::open_records(io::golden_path("cauldron.parquet"), {});
  const auto large = io::open_records(io::golden_path("mixed_batch.parquet"), {});
  check_row_group_memory({});
  check_row_group_memory(1e6);
  EXPECT_THAT(io::get_error_message([&] { check_row_group_memory(kTinyLimitGb); }, ExitCode::kDoesNotFit),
              AllOf(HasSubstr("mixed_batch.parquet: row group "), HasSubstr("GB (memory.limit_gb)"),
                    HasSubstr("row_group_size=")));
  EXPECT_EQ(suggest_row_group_size(), "") << "they are small";
  EXPECT_EQ(io::get_row_group_memory_stats().cached_bytes, 0) << "nothing was read";
}

}  // namespace

}  // namespace vlmtrain::train
