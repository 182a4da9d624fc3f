#include "vlmtrain/data/outlines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "data/fake_processor.h"
#include "io/temporary_folder.h"

namespace vlmtrain::data {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

/// A sample has as many tokens as its picture has bytes; remembers whom it was asked for.
class SizeOfFile : public SampleProcessor {
 public:
  Sample process(const io::Record& record, int64_t index) const override { return outline(record, index); }
  Sample outline(const io::Record& record, int64_t index) const override {
    {
      const std::lock_guard lock(mutex_);
      asked_.insert(record.id);
    }
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(record.images.at(0).path, error));
    if (error) throw SampleError("unreadable image", "sample " + record.id + ": no " + record.images[0].path);
    Sample sample;
    sample.index = index;
    sample.id = record.id;
    sample.token_ids.assign(static_cast<size_t>(bytes), 1);
    sample.is_label.assign(static_cast<size_t>(bytes), 1);
    sample.grids = {{.frames = 1, .rows = bytes, .columns = 2}};
    sample.making_bytes = 1000 + bytes;
    if (bytes > 38) sample.shrunk = Shrunk{.tokens = bytes, .tokens_left = 38};
    return sample;
  }

  std::optional<PositionLimit> made_for() const override { return limit; }
  std::optional<PositionLimit> limit{};

  /// Since the last call.
  std::set<std::string> asked() const { return std::exchange(asked_, {}); }

 private:
  mutable std::mutex mutex_;
  mutable std::set<std::string> asked_;
};

class OutlinesTest : public io::TemporaryFolderTest {
 protected:
  void SetUp() override {
    io::TemporaryFolderTest::SetUp();
    processor_.emplace();
    for (int64_t i = 0; i < records_.size(); ++i) {
      records_[i].images = {folder() / fmt::format("{}.png", i)};
      put_picture(i, std::string(static_cast<size_t>(i) + 2, 'x'));
    }
  }

  void put_picture(int64_t sample, const std::string& content) const { put(fmt::format("{}.png", sample), content); }

  Outlines look(const std::string& processor = "p", const fs::path& cache = "cache") const {
    return outline_samples(records_, *processor_,
                           {.workers = 3, .cache = cache.empty() ? cache : folder() / cache, .processor = processor});
  }

  io::RecordList records_ = make_records(40);
  std::optional<SizeOfFile> processor_;
};

TEST_F(OutlinesTest, AllShapesAndAllProblemsComeTogether) {
  fs::remove(folder() / "7.png");
  records_[9].problem = "no turns";
  const Outlines found = look("p", {});
  ASSERT_EQ(found.shapes.size(), 40);
  EXPECT_EQ(found.shapes[0]->tokens, 2);
  EXPECT_EQ(found.shapes[39]->tokens, 41);
  EXPECT_FALSE(found.shapes.has(7) || found.shapes.has(9));
  ASSERT_EQ(found.problems.size(), 2U);
  EXPECT_EQ(found.problems.at(7).reason, "unreadable image");
  EXPECT_EQ(found.problems.at(9).reason, "unusable record");
  EXPECT_EQ(found.usable(), 38);
  EXPECT_FALSE(fs::exists(folder() / "cache"));
}

constexpr const char* kUnreadKey = R"(key "source" of a record)";
constexpr const char* kUnreadDetail = R"(key "detail" of an image block)";

TEST_F(OutlinesTest, NoticesAreCountedWithAndWithoutACache) {
  for (const int64_t index : {3, 7, 39}) records_[index].notices = {{kUnreadKey, fmt::format("web {}", index)}};
  records_[7].notices.push_back({kUnreadDetail, "high"});
  records_[9].notices = {{kUnreadKey, "of a sample that is not used"}};
  records_[9].problem = "no turns";
  const Outlines found = look("p", {});
  ASSERT_EQ(found.notices.kinds().size(), 2U);
  EXPECT_EQ(found.notices.kinds().at(kUnreadKey), (NoticeCounts::Count{.samples = 3, .id = "s3", .example = "web 3"}));
  EXPECT_EQ(found.notices.kinds().at(kUnreadDetail),
            (NoticeCounts::Count{.samples = 1, .id = "s7", .example = "high"}));
  EXPECT_EQ(look().notices, found.notices);
  processor_->asked();
  EXPECT_EQ(look().notices, found.notices);
  EXPECT_THAT(processor_->asked(), UnorderedElementsAre());
}

TEST_F(OutlinesTest, NoticesOfACacheFollowTheRecords) {
  for (const int64_t index : {3, 7}) records_[index].notices = {{kUnreadKey, "web"}};
  look();
  processor_->asked();
  records_[3].notices = {{kUnreadDetail, "high"}};
  records_[7].notices = {};
  records_[8].notices = {{kUnreadKey, "book"}, {"a kind that comes last", ""}};
  const Outlines found = look();
  EXPECT_THAT(processor_->asked(), UnorderedElementsAre("s3", "s7", "s8"));
  EXPECT_EQ(found.notices.kinds().at(kUnreadDetail).samples, 1);
  EXPECT_EQ(found.notices.kinds().at(kUnreadKey).samples, 1);
  EXPECT_EQ(found.notices.kinds().size(), 3U);
  EXPECT_EQ(look().notices.kinds().at("a kind that comes last").samples, 1);
  EXPECT_THAT(processor_->asked(), UnorderedElementsAre());
}

TEST_F(OutlinesTest, MoreKindsOfNoticesThanAreCountedAreCountedTogether) {
  for (int64_t index = 0; index < records_.size(); ++index) {
    for (int64_t i = 0; i < 10; ++i) records_[index].notices.push_back({fmt::format("kind {}", 10 * index + i), "x"});
  }
  const auto first = look().notices;
  EXPECT_EQ(first.kinds().size(), kMostNoticeKinds + 1);
  EXPECT_EQ(first.kinds().at(kOtherNotices).samples, 20);
  EXPECT_EQ(look().notices.kinds().at(kOtherNotices).samples, 20);
}

TEST_F(OutlinesTest, ASampleOfMorePositionsThanTheModelWasMadeForIsNoticed) {
  processor_->limit = PositionLimit{.positions = 40, .key = "max_position_embeddings"};
  const std::string kind = "more positions than the model was made for (max_position_embeddings 40)";
  const auto expected = NoticeCounts::Count{.samples = 1, .id = "s39", .example = "41 positions of 41 tokens"};
  EXPECT_EQ(look().notices.kinds().at(kind), expected) << "40 fit";
  EXPECT_EQ(look().notices.kinds().at(kind).samples, 1);
  records_[39].notices = {{kUnreadKey, "web"}};
  EXPECT_EQ(look().notices.kinds().size(), 2U);
  processor_->asked();
  EXPECT_EQ(look().notices.kinds().size(), 2U);
  EXPECT_THAT(processor_->asked(), UnorderedElementsAre()) << "that of the record is told from that of the sample";
}

TEST_F(OutlinesTest, PrintsTellEqualSamplesByContentAndFilesByAnySpelling) {
  const auto prints_of = [&](const io::Records& records, const char* cache) {
    return outline_samples(records, *processor_, {.workers = 2, .cache = folder() / cache, .keeps_prints = true})
        .prints;
  };
  auto trained = prints_of(records_, "trained");
  io::RecordList evaluated = make_records(3);
  for (int64_t i = 0; i < 3; ++i) {
    evaluated[i].id = fmt::format("another id {}", i);
    evaluated[i].task = "another task";
    evaluated[i].notices = {{kUnreadKey, "web"}};
    evaluated[i].images = {(folder() / "." / fmt::format("../{}/{}.png", folder().filename().string(), i)).string()};
  }
  evaluated[1].turns = {{io::Role::kUser, "other words"}};
  put("alone.png", "x");
  evaluated[2].images = {(folder() / "alone.png").string()};
  for (int time = 0; time < 2; ++time) {
    const auto shared = shared_content(prints_of(evaluated, "evaluated"), trained);
    EXPECT_THAT(shared.samples, ElementsAre(0));
    EXPECT_THAT(shared.with_files, ElementsAre(1));
  }
  EXPECT_TRUE(look().prints.contents.empty()) << "they were not asked for";
}

TEST_F(OutlinesTest, ALookAtSomeIsSpreadOverTheDataSet) {
  const Outlines found = outline_samples(records_, *processor_, {.workers = 2, .most_samples = 4});
  std::vector<int64_t> looked_at;
  for (int64_t i = 0; i < found.shapes.size(); ++i) {
    if (found.shapes.has(i)) looked_at.push_back(i);
  }
  EXPECT_THAT(looked_at, ElementsAre(0, 10, 20, 30));
}

TEST_F(OutlinesTest, WhatDidNotChangeIsKnownTheNextTime) {
  const Outlines first = look();
  EXPECT_EQ(first.from_cache, 0);
  EXPECT_EQ(processor_->asked().size(), 40U);
  const Outlines second = look();
  EXPECT_THAT(processor_->asked(), UnorderedElementsAre());
  EXPECT_EQ(second.from_cache, 40);
  EXPECT_EQ(second.changed, 0);
  EXPECT_EQ(second.shapes, first.shapes);
  EXPECT_EQ(first.making_bytes, 1041) << "of the largest file, which has 41 bytes";
  EXPECT_EQ(second.making_bytes, first.making_bytes);
  EXPECT_EQ(first.shrunk.size(), 3U);
  EXPECT_EQ(first.shrunk.at(39).tokens, 41);
  EXPECT_EQ(second.shrunk, first.shrunk);
}

TEST_F(OutlinesTest, ACacheMayBeReadAlone) {
  const OutlineSettings settings{.workers = 1, .cache = folder() / "cache", .writes_cache = false, .processor = "p"};
  outline_samples(records_, *processor_, settings);
  EXPECT_FALSE(fs::exists(folder() / "cache"));
  look();
  const std::string kept = content_of(folder() / "cache");
  put_picture(3, "another size");
  EXPECT_EQ(outline_samples(records_, *processor_, settings).from_cache, 39);
  EXPECT_EQ(content_of(folder() / "cache"), kept);
}

TEST_F(OutlinesTest, WhatChangedIsLookedAtAnew) {
  const auto time = fs::last_write_time(folder() / "3.png");
  look();
  processor_->asked();
  put_picture(3, "y234");  // of another size
  put_picture(5, "yyyyyyy");
  fs::last_write_time(folder() / "5.png", time);  // of the same size and date
  fs::remove(folder() / "8.png");
  records_[11].turns = {{.role = io::Role::kUser, .text = "Why?"}};
  const Outlines found = look();
  EXPECT_THAT(processor_->asked(), UnorderedElementsAre("s3", "s5", "s8", "s11"));
  EXPECT_EQ(found.shapes[3]->tokens, 4);
  EXPECT_EQ(found.problems.size(), 1U);
  EXPECT_EQ(found.changed, 4);
  put_picture(8, "yyyyyyyyyy");
  EXPECT_EQ(look().problems.size(), 0U) << "it is there again";
  EXPECT_THAT(processor_->asked(), UnorderedElementsAre("s8"));
}

/// Counts how often a record is read.
class CountedRecords final : public io::Records {
 public:
  explicit CountedRecords(const io::RecordList& records) : records_(records) {}
  int64_t size() const override { return records_.size(); }
  io::Record at(int64_t index) const override {
    ++reads;
    return records_.at(index);
  }
  uint64_t stamp() const override { return known_stamp; }

  mutable std::atomic<int64_t> reads = 0;
  uint64_t known_stamp = 5;

 private:
  const io::RecordList& records_;
};

TEST_F(OutlinesTest, RecordsOfUnchangedFilesAreNotReadAgain) {
  CountedRecords counted(records_);
  const auto look_at_counted = [&] {
    processor_->asked();
    counted.reads = 0;
    return outline_samples(counted, *processor_, {.workers = 3, .cache = folder() / "cache", .processor = "p"});
  };
  const Outlines first = look_at_counted();
  EXPECT_EQ(counted.reads, 40);
  const Outlines second = look_at_counted();
  EXPECT_EQ(counted.reads, 0);
  EXPECT_EQ(second.shapes, first.shapes);
  EXPECT_EQ(second.ids, first.ids);
  EXPECT_EQ(second.from_cache, 40);
  put_picture(3, "y234");
  EXPECT_EQ(look_at_counted().shapes[3]->tokens, 4) << "its picture has another size";
  EXPECT_EQ(counted.reads, 1);
  fs::remove(folder() / "7.png");
  EXPECT_EQ(look_at_counted().problems.size(), 1U);
  EXPECT_EQ(counted.reads, 1);
  put_picture(7, "xxxxxxxxx");
  look_at_counted();
  counted.known_stamp = 6;
  EXPECT_EQ(look_at_counted().from_cache, 40) << "a file that was written anew with the same records";
  EXPECT_EQ(counted.reads, 40);
  look_at_counted();
  EXPECT_EQ(counted.reads, 0);
  counted.known_stamp = 0;
  look_at_counted();
  look_at_counted();
  EXPECT_EQ(counted.reads, 40) << "who knows no stamp is read";
}

/// Samples whose outline takes no time, for data sets that are looked at in several parts.
TEST_F(OutlinesTest, ALargeDataSetIsLookedAtInParts) {
  const FakeProcessor quick;
  auto records = make_records(20'000);
  records[12'345].problem = "no turns";
  const auto look_at = [&] {
    std::vector<int64_t> heard;
    auto found = outline_samples(
        records, quick,
        {.workers = 2, .cache = folder() / "cache", .processor = "p", .on_progress = [&heard](int64_t done) {
           heard.push_back(done);
         }});
    EXPECT_TRUE(std::ranges::is_sorted(heard));
    return found;
  };
  const Outlines first = look_at();
  EXPECT_EQ(first.usable(), 19'999);
  EXPECT_EQ(first.ids[12'345], "s12345");
  EXPECT_EQ(first.ids[19'999], "s19999");
  const std::string kept = content_of(folder() / "cache");
  const Outlines second = look_at();
  EXPECT_EQ(second.from_cache, 19'999);
  EXPECT_EQ(second.shapes, first.shapes);
  EXPECT_EQ(second.ids, first.ids);
  EXPECT_EQ(content_of(folder() / "cache"), kept);
  // What stands before the first part with news is taken over.
  records[9'000].turns.push_back({.role = io::Role::kAssistant, .text = "more"});
  EXPECT_EQ(look_at().changed, 1);
  EXPECT_NE(content_of(folder() / "cache"), kept);
  EXPECT_EQ(look_at().from_cache, 19'999);
  records = make_records(20'000);
  EXPECT_EQ(look_at().from_cache, 19'998);
  EXPECT_EQ(look_at().from_cache, 20'000);
}

TEST_F(OutlinesTest, FramesOfAFolderCountOneByOne) {
  fs::create_directory(folder() / "clip");
  std::ofstream(folder() / "clip/1.png") << "a";
  for (int64_t i = 0; i < records_.size(); ++i) records_[i].videos = {folder() / "clip"};
  look();
  processor_->asked();
  look();
  EXPECT_EQ(processor_->asked().size(), 0U);
  std::ofstream(folder() / "clip/1.png", std::ios::app) << "b";
  look();
  EXPECT_EQ(processor_->asked().size(), 40U);
}

TEST_F(OutlinesTest, ABadSampleIsTriedAgainAtEachStart) {
  fs::remove(folder() / "7.png");
  look();
  processor_->asked();
  look();
  EXPECT_THAT(processor_->asked(), UnorderedElementsAre("s7"));
}

TEST_F(OutlinesTest, AForeignOrDamagedCacheIsNone) {
  const Outlines wanted = look();
  std::ifstream stream(folder() / "cache");
  const std::string whole{std::istreambuf_iterator<char>(stream), {}};
  const auto expect_ignored = [&](const std::string& content, const char* what) {
    std::ofstream(folder() / "cache") << content;
    processor_->asked();
    const Outlines found = look();
    EXPECT_EQ(found.from_cache, 0) << what;
    EXPECT_EQ(found.shapes, wanted.shapes) << what;
  };
  std::string flipped = whole;
  flipped[whole.size() - 20] = flipped[whole.size() - 20] == '1' ? '2' : '1';
  expect_ignored(flipped, "a digit");
  expect_ignored(whole.substr(0, whole.size() / 2), "half");
  expect_ignored(whole.substr(0, whole.rfind('\n', whole.size() - 2) + 1), "the last line");
  expect_ignored("", "empty");
  expect_ignored("{}\n", "another file");
  expect_ignored(std::string(100'000, '['), "hostile");
  look();
  EXPECT_EQ(look("another processor").from_cache, 0);
  EXPECT_EQ(look("another processor").from_cache, 40);
  fs::remove(folder() / "cache");
  fs::create_directory(folder() / "cache");
  EXPECT_EQ(look().shapes, wanted.shapes) << "a folder in its place";
}

/// Of another processor's outlines, each of which may throw or wait.
class TroubledOutlines : public FakeProcessor {
 public:
  explicit TroubledOutlines(std::function<void(int64_t index)> trouble) : trouble_(std::move(trouble)) {}

  Sample outline(const io::Record& record, int64_t index) const override {
    trouble_(index);
    return FakeProcessor::outline(record, index);
  }

 private:
  std::function<void(int64_t index)> trouble_;
};

TEST_F(OutlinesTest, AnErrorThatIsNotASamplesFaultEndsIt) {
  const TroubledOutlines broken([](int64_t index) {
    if (index == 17) throw InternalError("a bug");
  });
  EXPECT_THROW(outline_samples(records_, broken, {.workers = 4}), InternalError);
}

TEST_F(OutlinesTest, WhoeverWatchesMayEndIt) {
  const TroubledOutlines slow([](int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  const auto records = make_records(100'000);
  EXPECT_THROW(
      outline_samples(records, slow, {.workers = 2, .on_progress = [](int64_t) { throw run_error("enough"); }}),
      UserError);
}

TEST(SettleProblems, ReportsTheFirstByNameAndCountsTheRest) {
  auto records = make_records(9);
  TextColumn ids(9);
  for (int64_t i = 0; i < 9; ++i) ids.set(i, records[i].id);
  std::map<int64_t, SampleProblem> problems;
  for (int64_t i = 1; i < 8; ++i) problems[i] = {"too long", fmt::format("sample s{} is too long", i)};
  records[2].problem = "no turns";
  Ledger ledger("train.json", 9);
  try {
    settle_problems(problems, ids, ledger, BadSamplePolicy::kFail, records);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_THAT(error.what(), HasSubstr("train.json: 7 of 9 samples cannot be used"));
    EXPECT_THAT(error.what(), HasSubstr("line 2: sample s1 is too long\n"));
    EXPECT_THAT(error.what(), HasSubstr("line 3, sample s2: no turns\n"));
    EXPECT_THAT(error.what(), Not(HasSubstr("s6")));
    EXPECT_THAT(error.what(), HasSubstr("and 2 more"));
  }
  EXPECT_EQ(ledger.count(SampleStatus::kFailed), 7);
  Ledger skipping("train.json", 9);
  settle_problems(problems, ids, skipping, BadSamplePolicy::kSkip, records);
  EXPECT_EQ(skipping.count(SampleStatus::kDropped), 7);
}

}  // namespace
}  // namespace vlmtrain::data
