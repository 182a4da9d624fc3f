#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <thread>

#include "base/captured_log.h"
#include "io/dataset/record_files.h"
#include "io/parquet_test.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Parquet = ParquetTest;

TEST_F(Parquet, ReadsTheLayoutOfTheCauldron) {
  const auto records = open_records(golden_path("cauldron.parquet"), {});
  ASSERT_EQ(records->size(), 5);
  EXPECT_THAT(records->block_starts(), ElementsAre(0, 2, 4));
  for (const int64_t row : {3, 0, 4, 1, 2}) {
    const Record record = records->at(row);
    EXPECT_EQ(record.problem, "");
    EXPECT_EQ(record.id, fmt::format("cauldron:{}", row));
    EXPECT_EQ(record.location, fmt::format("row {} of row group {}", row % 2, row / 2));
    ASSERT_EQ(std::ssize(record.images), 1 + row % 2);
    EXPECT_EQ(*record.images.back().bytes, fmt::format("picture {}{}", row, row % 2 == 0 ? "a" : "b"));
    EXPECT_EQ(record.images[0].path, fmt::format("{}a.png", row));
    ASSERT_EQ(std::ssize(record.turns), 2 * (1 + row % 3));
    EXPECT_EQ(record.turns[0].text, (row % 2 == 0 ? "<image>\n" : "<image><image>\n") + fmt::format("Q{}.0", row));
    EXPECT_EQ(record.turns.back().text, fmt::format("A{0}.{1}", row, row % 3));
    const Record text = records->at_without_media_bytes(row);
    EXPECT_EQ(text.turns[0].text, record.turns[0].text);
    EXPECT_EQ(*text.images.at(0).bytes, "");
  }
}

TEST_F(Parquet, ReadsMessagesAndQuestions) {
  const auto messages = open_records(golden_path("messages.parquet"), {});
  ASSERT_EQ(messages->size(), 3);
  const Record last = messages->at(2);
  EXPECT_EQ(last.problem, "");
  EXPECT_EQ(last.id, "12");
  EXPECT_EQ(last.task, "even");
  EXPECT_EQ(*last.images.at(0).bytes, "picture 2");
  EXPECT_EQ(last.turns.at(0).text, "<image> Q");

  const auto questions = open_records(golden_path("questions.parquet"), {.image_root = "/root"});
  const Record first = questions->at(0);
  EXPECT_EQ(first.problem, "");
  EXPECT_THAT(first.images, ElementsAre("/root/on/disk.png"));
  EXPECT_EQ(first.turns.at(1).text, "1.5");
  EXPECT_THAT(questions->at(1).problem, HasSubstr("has no \"answer\""));
  EXPECT_EQ(open_records(golden_path("questions.parquet"), {.columns = {{"answer", "left"}}})->at(0).turns.at(1).text,
            "L");
}

TEST_F(Parquet, SeveralFilesAreOneDataSet) {
  std::filesystem::copy(golden_path("cauldron.parquet"), folder() / "train-2.parquet");
  std::filesystem::copy(golden_path("cauldron.parquet"), folder() / "train-10.parquet");
  const auto records = open_records(folder(), {});
  ASSERT_EQ(records->size(), 10);
  EXPECT_THAT(records->block_starts(), ElementsAre(0, 2, 4, 5, 7, 9));
  EXPECT_EQ(records->at(9).location, "train-10.parquet, row 0 of row group 2");
}

TEST_F(Parquet, WarnsOfColumnsThatSomeFilesLack) {
  std::filesystem::copy(golden_path("cauldron.parquet"), folder() / "a-1.parquet");
  std::filesystem::copy(golden_path("cauldron.parquet"), folder() / "a-2.parquet");
  {
    const CapturedLog log;
    open_records(folder(), {});
    EXPECT_EQ(log.text(), "");
  }
  std::filesystem::copy(golden_path("questions.parquet"), folder() / "a-3.parquet");
  const CapturedLog log;
  open_records(folder(), {});
  EXPECT_THAT(log.text(), AllOf(HasSubstr("1 of 3 files have no column \"images\", such as a-3.parquet"),
                                HasSubstr("2 of 3 files have no column \"question\", such as a-1.parquet")));
}

TEST_F(Parquet, RecordsOfPublishedLayoutsHaveNoNotices) {
  for (const char* const name : {"cauldron.parquet", "messages.parquet"}) {
    const auto records = open_records(golden_path(name), {});
    for (int64_t i = 0; i < records->size(); ++i) {
      EXPECT_TRUE(records->at(i).notices.empty()) << name << ": " << records->at(i).notices.front().kind;
    }
  }
}

TEST_F(Parquet, NamesTheColumnsWhereTheyMakeNoRecords) {
  EXPECT_THAT(get_error_message([] { open_records(golden_path("strangers.parquet"), {}); }),
              AllOf(HasSubstr("strangers.parquet: its columns are a, b"), HasSubstr("data.columns.question=COLUMN")));
  EXPECT_THAT(get_error_message([] {
                open_records(golden_path("strangers.parquet"), {.columns = {{"question", "b"}, {"answer", "c"}}});
              }),
              HasSubstr("\"answer\" to the column \"c\", which does not exist; its columns are a, b"));
}

TEST_F(Parquet, ACorruptPageIsAProblemOfItsRowGroup) {
  std::string content = read_contents(golden_path("cauldron.parquet"));
  const size_t page = content.find("picture 2a");
  ASSERT_NE(page, std::string::npos);
  content[page] = 'P';
  const auto records = open_records(put("corrupt.parquet", content), {});
  for (const int64_t row : {2, 3, 2}) {
    EXPECT_THAT(records->at(row).problem, AllOf(HasSubstr("row group 1 of"), HasSubstr("corrupt.parquet"),
                                                HasSubstr("download or write the file again")));
    EXPECT_EQ(records->at(row).id, fmt::format("corrupt:{}", row));
  }
  EXPECT_EQ(records->at(1).problem, "");
  EXPECT_EQ(records->at(4).problem, "");
}

TEST_F(Parquet, RefusesTruncatedOrChangedFiles) {
  const std::string content = read_contents(golden_path("cauldron.parquet"));
  const auto get_error = [&](std::string_view text) {
    return get_error_message([&] { open_records(put("cut.parquet", text), {}); });
  };
  EXPECT_THAT(get_error(content.substr(0, content.size() / 2)),
              AllOf(HasSubstr("cut.parquet: not a readable Parquet file"), HasSubstr("download or write it")));
  EXPECT_THAT(get_error("PAR1"), HasSubstr("not a readable Parquet file"));
  const auto records = open_records(put("a.parquet", content), {});
  put("a.parquet", content + "x");
  EXPECT_THAT(get_error_message([&] { (void)records->at(0); }, ExitCode::kFailed),
              HasSubstr("a.parquet: changed during the run"));
}

TEST_F(Parquet, RecordsWithoutBytesHaveTheSameMedia) {
  const auto records = open_records(golden_path("some_images.parquet"), {.image_root = "/root"});
  ASSERT_EQ(records->size(), 6);
  const auto kind = [](const Record& record) {
    if (record.images.empty()) return std::string("none");
    return record.images[0].bytes ? "bytes" : record.images[0].path;
  };
  std::vector<std::string> kinds;
  for (int64_t row = 0; row < records->size(); ++row) {
    const Record record = records->at(row), text = records->at_without_media_bytes(row);
    EXPECT_EQ(record.problem, "");
    EXPECT_EQ(text.problem, record.problem);
    EXPECT_EQ(text.turns.at(0).text, record.turns.at(0).text) << record.id;
    EXPECT_EQ(kind(text), kind(record)) << record.id;
    kinds.push_back(kind(record));
  }
  EXPECT_THAT(kinds, ElementsAre("bytes", "bytes", "/root/a.png", "none", "bytes", "/root/d.png"));
  EXPECT_EQ(records->at_without_media_bytes(0).images[0].bytes, get_omitted_bytes_marker())
      << "all rows of the row group have images";
  EXPECT_THROW(get_media_bytes(records->at_without_media_bytes(0).images[0]), std::logic_error);
}

TEST_F(Parquet, AListOfImagesIsOneVideoWithAndWithoutBytes) {
  const auto records = open_records(golden_path("frames.parquet"), {});
  for (const Record& record : {records->at(0), records->at_without_media_bytes(0)}) {
    EXPECT_EQ(record.problem, "");
    ASSERT_EQ(record.videos.size(), 1);
    EXPECT_EQ(record.videos[0].frames.size(), 2);
  }
}

TEST_F(Parquet, TheLargestRowGroupIsKnownBeforeItIsRead) {
  const auto records = open_records(golden_path("mixed_batch.parquet"), {});
  const RowGroupMemoryStats memory = get_row_group_memory_stats();
  ASSERT_TRUE(memory.largest_row_group);
  EXPECT_EQ(memory.largest_row_group->file, golden_path("mixed_batch.parquet"));
  EXPECT_LE(memory.largest_row_group->rows, 4);
  EXPECT_GT(memory.largest_row_group->bytes, 10'000);
  EXPECT_EQ(memory.cached_bytes, 0);
  EXPECT_GE(memory.max_cached_bytes, memory.largest_row_group->bytes);
  EXPECT_EQ(memory.compute_max_additional_bytes(), memory.max_cached_bytes + memory.largest_row_group->bytes);
  (void)records->at(0);
  const RowGroupMemoryStats after_read = get_row_group_memory_stats();
  EXPECT_GT(after_read.cached_bytes, 0);
  EXPECT_EQ(after_read.compute_max_additional_bytes(),
            std::max<int64_t>(0, after_read.max_cached_bytes - after_read.cached_bytes) +
                after_read.largest_row_group->bytes);
}

class FixedSizeRowGroup : public RowGroup {
 public:
  explicit FixedSizeRowGroup(int64_t bytes) : bytes_(bytes) {}
  int64_t bytes() const override { return bytes_; }
  RecordJson row(int64_t) const override { return {}; }

 private:
  int64_t bytes_;
};

TEST(RowGroupCache, KeepsRecentlyUsedGroups) {
  RowGroupCache cache(100);
  int reads = 0;
  const auto get = [&](size_t group, int64_t bytes) {
    cache.get({.group = group}, 0, [&] {
      ++reads;
      return std::make_unique<const FixedSizeRowGroup>(bytes);
    });
    return reads;
  };
  EXPECT_EQ(get(0, 40), 1);
  EXPECT_EQ(get(1, 40), 2);
  EXPECT_EQ(get(0, 40), 2);
  EXPECT_EQ(get(2, 40), 3);  // drops 1
  EXPECT_EQ(get(0, 40), 3);
  EXPECT_EQ(get(1, 40), 4);  // drops 2
  EXPECT_EQ(cache.bytes(), 80);
  EXPECT_EQ(get(3, 500), 5);  // one is kept, whatever it takes
  EXPECT_EQ(cache.bytes(), 500);
  EXPECT_EQ(get(3, 500), 5);
  EXPECT_EQ(get(0, 40), 6);
  EXPECT_EQ(cache.bytes(), 40);
}

TEST(RowGroupCache, KeepsTheLastGroupOfEachDataSet) {
  RowGroupCache cache(100);
  int reads = 0;
  const auto get = [&](uint64_t data_set, uint64_t file, size_t group) {
    cache.get({.data_set_id = data_set, .file_id = file, .group = group}, 0, [&] {
      ++reads;
      return std::make_unique<const FixedSizeRowGroup>(70);
    });
    return reads;
  };
  EXPECT_EQ(get(1, 10, 0), 1);
  EXPECT_EQ(get(2, 20, 0), 2);
  EXPECT_EQ(get(3, 30, 0), 3);
  EXPECT_EQ(cache.bytes(), 210);
  EXPECT_EQ(get(1, 10, 0), 3);
  EXPECT_EQ(get(2, 20, 0), 3);
  EXPECT_EQ(get(2, 21, 0), 4);  // drops the other one of data set 2
  EXPECT_EQ(cache.bytes(), 210);
  EXPECT_EQ(get(1, 10, 0), 4);
  EXPECT_EQ(get(2, 20, 0), 5);
  cache.unregister_file(20);
  EXPECT_EQ(cache.bytes(), 140);
  EXPECT_EQ(get(2, 20, 0), 6);
}

TEST(RowGroupCache, EvictsBeforeReading) {
  RowGroupCache cache(100);
  int64_t bytes_during_read = 0;
  const auto get = [&](size_t group, int64_t bytes) {
    cache.get({.group = group}, bytes, [&] {
      bytes_during_read = cache.bytes();
      return std::make_unique<const FixedSizeRowGroup>(bytes);
    });
  };
  get(0, 60);
  get(1, 70);
  EXPECT_EQ(bytes_during_read, 70) << "the other was dropped before";
  get(2, 30);
  EXPECT_EQ(bytes_during_read, 100);
  get(3, 500);
  EXPECT_EQ(bytes_during_read, 500);
  EXPECT_EQ(cache.bytes(), 500);
}

TEST(RowGroupCache, ReportsTheMemoryOfDataSets) {
  RowGroupCache cache(100);
  cache.register_file(1, 10, "a.parquet", {5, 7}, {30, 40});
  EXPECT_EQ(cache.get_memory_stats().max_cached_bytes, 70);
  cache.register_file(1, 11, "b.parquet", {9}, {80});
  EXPECT_EQ(cache.get_memory_stats().max_cached_bytes, 100);
  cache.register_file(2, 20, "c.parquet", {3}, {90});
  EXPECT_EQ(cache.get_memory_stats().max_cached_bytes, 170) << "the largest of each data set";
  EXPECT_EQ(cache.get_memory_stats().largest_row_group->file, "c.parquet");
  EXPECT_EQ(cache.get_memory_stats().largest_row_group->rows, 3);
  cache.unregister_file(20);
  EXPECT_EQ(cache.get_memory_stats().largest_row_group->file, "b.parquet");
  EXPECT_EQ(RowGroupMemoryStats{}.compute_max_additional_bytes(), 0);
}

TEST(RowGroupCache, OneThreadReadsAndTheOthersWait) {
  RowGroupCache cache(100);
  std::atomic<int> reads = 0;
  std::array<RowGroupCache::SharedRowGroup, 8> groups;
  {
    std::vector<std::jthread> threads;
    for (auto& group : groups) {
      threads.emplace_back([&] {
        group = cache.get({}, 0, [&] {
          ++reads;
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          return std::make_unique<const FixedSizeRowGroup>(1);
        });
      });
    }
  }
  EXPECT_EQ(reads, 1);
  for (const auto& group : groups) EXPECT_EQ(group, groups[0]);
}

TEST(RowGroupCache, RetriesAfterErrors) {
  RowGroupCache cache(100);
  const auto fail = []() -> std::unique_ptr<const RowGroup> { throw std::runtime_error("damaged"); };
  EXPECT_THROW(cache.get({}, 0, fail), std::runtime_error);
  EXPECT_THROW(cache.get({}, 0, fail), std::runtime_error);
  EXPECT_EQ(cache.get({}, 0, [] { return std::make_unique<const FixedSizeRowGroup>(7); })->bytes(), 7);
  EXPECT_EQ(cache.bytes(), 7);
}

}  // namespace
}  // namespace vlmtrain::io
