#include "io/table_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <thread>

#include "base/captured_log.h"
#include "io/parquet_test.h"
#include "vlmtrain/io/medium_bytes.h"
#include "vlmtrain/io/row_group_memory.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Parquet = ParquetTest;

TEST_F(Parquet, ReadsTheLayoutOfTheCauldron) {
  const auto records = open_records(golden("cauldron.parquet"), {});
  ASSERT_EQ(records->size(), 5);
  EXPECT_THAT(records->blocks(), ElementsAre(0, 2, 4));
  for (const int64_t row : {3, 0, 4, 1, 2}) {
    const Record record = records->at(row);
    EXPECT_EQ(record.problem, "");
    EXPECT_EQ(record.id, fmt::format("cauldron:{}", row));
    EXPECT_EQ(record.place, fmt::format("row {} of row group {}", row % 2, row / 2));
    ASSERT_EQ(std::ssize(record.images), 1 + row % 2);
    EXPECT_EQ(*record.images.back().bytes, fmt::format("picture {}{}", row, row % 2 == 0 ? "a" : "b"));
    EXPECT_EQ(record.images[0].path, fmt::format("{}a.png", row));
    ASSERT_EQ(std::ssize(record.turns), 2 * (1 + row % 3));
    EXPECT_EQ(record.turns[0].text, (row % 2 == 0 ? "<image>\n" : "<image><image>\n") + fmt::format("Q{}.0", row));
    EXPECT_EQ(record.turns.back().text, fmt::format("A{0}.{1}", row, row % 3));
    const Record text = records->text_at(row);
    EXPECT_EQ(text.turns[0].text, record.turns[0].text);
    EXPECT_EQ(*text.images.at(0).bytes, "");
  }
}

TEST_F(Parquet, ReadsMessagesAndQuestions) {
  const auto messages = open_records(golden("messages.parquet"), {});
  ASSERT_EQ(messages->size(), 3);
  const Record last = messages->at(2);
  EXPECT_EQ(last.problem, "");
  EXPECT_EQ(last.id, "12");
  EXPECT_EQ(last.task, "even");
  EXPECT_EQ(*last.images.at(0).bytes, "picture 2");
  EXPECT_EQ(last.turns.at(0).text, "<image> Q");

  const auto questions = open_records(golden("questions.parquet"), {.image_root = "/root"});
  const Record first = questions->at(0);
  EXPECT_EQ(first.problem, "");
  EXPECT_THAT(first.images, ElementsAre("/root/on/disk.png"));
  EXPECT_EQ(first.turns.at(1).text, "1.5");
  EXPECT_THAT(questions->at(1).problem, HasSubstr("has no \"answer\""));
  EXPECT_EQ(open_records(golden("questions.parquet"), {.columns = {{"answer", "left"}}})->at(0).turns.at(1).text, "L");
}

TEST_F(Parquet, SeveralFilesAreOneDataSet) {
  std::filesystem::copy(golden("cauldron.parquet"), folder() / "train-2.parquet");
  std::filesystem::copy(golden("cauldron.parquet"), folder() / "train-10.parquet");
  const auto records = open_records(folder(), {});
  ASSERT_EQ(records->size(), 10);
  EXPECT_THAT(records->blocks(), ElementsAre(0, 2, 4, 5, 7, 9));
  EXPECT_EQ(records->at(9).place, "train-10.parquet, row 0 of row group 2");
}

TEST_F(Parquet, WarnsOfColumnsThatSomeFilesLack) {
  std::filesystem::copy(golden("cauldron.parquet"), folder() / "a-1.parquet");
  std::filesystem::copy(golden("cauldron.parquet"), folder() / "a-2.parquet");
  {
    const CapturedLog log;
    open_records(folder(), {});
    EXPECT_EQ(log.text(), "");
  }
  std::filesystem::copy(golden("questions.parquet"), folder() / "a-3.parquet");
  const CapturedLog log;
  open_records(folder(), {});
  EXPECT_THAT(log.text(), AllOf(HasSubstr("1 of 3 files have no column \"images\", such as a-3.parquet"),
                                HasSubstr("2 of 3 files have no column \"question\", such as a-1.parquet")));
}

TEST_F(Parquet, RecordsOfPublishedLayoutsHaveNoNotices) {
  for (const char* const name : {"cauldron.parquet", "messages.parquet"}) {
    const auto records = open_records(golden(name), {});
    for (int64_t i = 0; i < records->size(); ++i) {
      EXPECT_TRUE(records->at(i).notices.empty()) << name << ": " << records->at(i).notices.front().kind;
    }
  }
}

TEST_F(Parquet, NamesTheColumnsWhereTheyMakeNoRecords) {
  EXPECT_THAT(message_of([] { open_records(golden("strangers.parquet"), {}); }),
              AllOf(HasSubstr("strangers.parquet: its columns are a, b"), HasSubstr("data.columns.question=COLUMN")));
  EXPECT_THAT(message_of([] {
                open_records(golden("strangers.parquet"), {.columns = {{"question", "b"}, {"answer", "c"}}});
              }),
              HasSubstr("\"answer\" is the column \"c\", and there is none; its columns are a, b"));
}

TEST_F(Parquet, ACorruptPageIsAProblemOfItsRowGroup) {
  std::string content = content_of(golden("cauldron.parquet"));
  const size_t page = content.find("picture 2a");
  ASSERT_NE(page, std::string::npos);
  content[page] = 'P';
  const auto records = open_records(put("corrupt.parquet", content), {});
  for (const int64_t row : {2, 3, 2}) {
    EXPECT_THAT(records->at(row).problem, AllOf(HasSubstr("row group 1 of"), HasSubstr("corrupt.parquet"),
                                                HasSubstr("fetch or write the file again")));
    EXPECT_EQ(records->at(row).id, fmt::format("corrupt:{}", row));
  }
  EXPECT_EQ(records->at(1).problem, "");
  EXPECT_EQ(records->at(4).problem, "");
}

TEST_F(Parquet, RefusesFilesThatWereCutOffOrChanged) {
  const std::string content = content_of(golden("cauldron.parquet"));
  const auto refused = [&](std::string_view text) {
    return message_of([&] { open_records(put("cut.parquet", text), {}); });
  };
  EXPECT_THAT(refused(content.substr(0, content.size() / 2)),
              AllOf(HasSubstr("cut.parquet: not a Parquet file that can be read"), HasSubstr("fetch or write it")));
  EXPECT_THAT(refused("PAR1"), HasSubstr("not a Parquet file that can be read"));
  const auto records = open_records(put("a.parquet", content), {});
  put("a.parquet", content + "x");
  EXPECT_THAT(message_of([&] { (void)records->at(0); }, ExitCode::kFailed),
              HasSubstr("a.parquet was changed while it is in use"));
}

TEST_F(Parquet, RecordsWithoutBytesHaveTheSameMedia) {
  const auto records = open_records(golden("some_images.parquet"), {.image_root = "/root"});
  ASSERT_EQ(records->size(), 6);
  const auto kind = [](const Record& record) {
    if (record.images.empty()) return std::string("none");
    return record.images[0].bytes ? "bytes" : record.images[0].path;
  };
  std::vector<std::string> kinds;
  for (int64_t row = 0; row < records->size(); ++row) {
    const Record record = records->at(row), text = records->text_at(row);
    EXPECT_EQ(record.problem, "");
    EXPECT_EQ(text.problem, record.problem);
    EXPECT_EQ(text.turns.at(0).text, record.turns.at(0).text) << record.id;
    EXPECT_EQ(kind(text), kind(record)) << record.id;
    kinds.push_back(kind(record));
  }
  EXPECT_THAT(kinds, ElementsAre("bytes", "bytes", "/root/a.png", "none", "bytes", "/root/d.png"));
  EXPECT_EQ(records->text_at(0).images[0].bytes, dropped_bytes()) << "all of the row group have some";
  EXPECT_THROW(bytes_of(records->text_at(0).images[0]), std::logic_error);
}

TEST_F(Parquet, AListOfImagesIsOneVideoWithAndWithoutBytes) {
  const auto records = open_records(golden("frames.parquet"), {});
  for (const Record& record : {records->at(0), records->text_at(0)}) {
    EXPECT_EQ(record.problem, "");
    ASSERT_EQ(record.videos.size(), 1);
    EXPECT_EQ(record.videos[0].frames.size(), 2);
  }
}

TEST_F(Parquet, TheLargestRowGroupIsKnownBeforeItIsRead) {
  const auto records = open_records(golden("mixed_batch.parquet"), {});
  const RowGroupMemory memory = row_group_memory();
  ASSERT_TRUE(memory.largest);
  EXPECT_EQ(memory.largest->file, golden("mixed_batch.parquet"));
  EXPECT_LE(memory.largest->rows, 4);
  EXPECT_GT(memory.largest->bytes, 10'000);
  EXPECT_EQ(memory.held_bytes, 0);
  EXPECT_GE(memory.most_bytes, memory.largest->bytes);
  EXPECT_EQ(memory.bytes_to_come(), memory.most_bytes + memory.largest->bytes);
  (void)records->at(0);
  const RowGroupMemory then = row_group_memory();
  EXPECT_GT(then.held_bytes, 0);
  EXPECT_EQ(then.bytes_to_come(), std::max<int64_t>(0, then.most_bytes - then.held_bytes) + then.largest->bytes);
}

class OfBytes : public RowGroup {
 public:
  explicit OfBytes(int64_t bytes) : bytes_(bytes) {}
  int64_t bytes() const override { return bytes_; }
  nlohmann::json row(int64_t) const override { return {}; }

 private:
  int64_t bytes_;
};

TEST(RowGroupCache, KeepsTheOnesThatWereUsedLast) {
  RowGroupCache cache(100);
  int reads = 0;
  const auto get = [&](size_t group, int64_t bytes) {
    cache.get({.group = group}, 0, [&] {
      ++reads;
      return std::make_unique<const OfBytes>(bytes);
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

TEST(RowGroupCache, EachDataSetKeepsItsLast) {
  RowGroupCache cache(100);
  int reads = 0;
  const auto get = [&](uint64_t data_set, uint64_t file, size_t group) {
    cache.get({.data_set = data_set, .file = file, .group = group}, 0, [&] {
      ++reads;
      return std::make_unique<const OfBytes>(70);
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
  cache.drop(20);
  EXPECT_EQ(cache.bytes(), 140);
  EXPECT_EQ(get(2, 20, 0), 6);
}

TEST(RowGroupCache, MakesRoomBeforeItReads) {
  RowGroupCache cache(100);
  int64_t held = 0;
  const auto get = [&](size_t group, int64_t bytes) {
    cache.get({.group = group}, bytes, [&] {
      held = cache.bytes();
      return std::make_unique<const OfBytes>(bytes);
    });
  };
  get(0, 60);
  get(1, 70);
  EXPECT_EQ(held, 70) << "the other was dropped before";
  get(2, 30);
  EXPECT_EQ(held, 100);
  get(3, 500);
  EXPECT_EQ(held, 500);
  EXPECT_EQ(cache.bytes(), 500);
}

TEST(RowGroupCache, AddsUpWhatDataSetsKeep) {
  RowGroupCache cache(100);
  cache.enter(1, 10, "a.parquet", {5, 7}, {30, 40});
  EXPECT_EQ(cache.memory().most_bytes, 70);
  cache.enter(1, 11, "b.parquet", {9}, {80});
  EXPECT_EQ(cache.memory().most_bytes, 100);
  cache.enter(2, 20, "c.parquet", {3}, {90});
  EXPECT_EQ(cache.memory().most_bytes, 170) << "the largest of each data set";
  EXPECT_EQ(cache.memory().largest->file, "c.parquet");
  EXPECT_EQ(cache.memory().largest->rows, 3);
  cache.drop(20);
  EXPECT_EQ(cache.memory().largest->file, "b.parquet");
  EXPECT_EQ(RowGroupMemory{}.bytes_to_come(), 0);
}

TEST(RowGroupCache, OneThreadReadsAndTheOthersWait) {
  RowGroupCache cache(100);
  std::atomic<int> reads = 0;
  std::array<RowGroupCache::Group, 8> groups;
  {
    std::vector<std::jthread> threads;
    for (auto& group : groups) {
      threads.emplace_back([&] {
        group = cache.get({}, 0, [&] {
          ++reads;
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          return std::make_unique<const OfBytes>(1);
        });
      });
    }
  }
  EXPECT_EQ(reads, 1);
  for (const auto& group : groups) EXPECT_EQ(group, groups[0]);
}

TEST(RowGroupCache, WhatCannotBeReadIsReadAnew) {
  RowGroupCache cache(100);
  const auto fail = []() -> std::unique_ptr<const RowGroup> { throw std::runtime_error("damaged"); };
  EXPECT_THROW(cache.get({}, 0, fail), std::runtime_error);
  EXPECT_THROW(cache.get({}, 0, fail), std::runtime_error);
  EXPECT_EQ(cache.get({}, 0, [] { return std::make_unique<const OfBytes>(7); })->bytes(), 7);
  EXPECT_EQ(cache.bytes(), 7);
}

}  // namespace
}  // namespace vlmtrain::io
