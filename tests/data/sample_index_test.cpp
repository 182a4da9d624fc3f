#include "vlmtrain/data/index/sample_index.h"

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

/// A processor of samples with as many tokens as their image has bytes. Records the processed ids.
class FileSizeProcessor : public SampleProcessor {
 public:
  Sample process(const io::Record& record, int64_t index) const override { return process_headers(record, index); }
  Sample process_headers(const io::Record& record, int64_t index) const override {
    {
      const std::lock_guard lock(mutex_);
      processed_ids_.insert(record.id);
    }
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(record.images.at(0).path, error));
    if (error) throw SampleError("unreadable image", "sample " + record.id + ": no " + record.images[0].path);
    Sample sample;
    sample.index = index;
    sample.id = record.id;
    sample.token_ids.assign(static_cast<size_t>(bytes), 1);
    sample.label_mask.assign(static_cast<size_t>(bytes), 1);
    sample.patch_grids = {{.frames = 1, .rows = bytes, .columns = 2}};
    sample.decode_bytes = 1000 + bytes;
    if (bytes > 38) sample.shrink_info = ShrinkInfo{.tokens = bytes, .tokens_after = 38};
    return sample;
  }

  std::optional<PositionLimit> position_limit() const override { return limit; }
  std::optional<PositionLimit> limit{};

  /// Returns the ids since the last call.
  std::set<std::string> processed_ids() const { return std::exchange(processed_ids_, {}); }

 private:
  mutable std::mutex mutex_;
  mutable std::set<std::string> processed_ids_;
};

class SampleIndexTest : public io::TemporaryFolderTest {
 protected:
  void SetUp() override {
    io::TemporaryFolderTest::SetUp();
    processor_.emplace();
    for (int64_t i = 0; i < records_.size(); ++i) {
      records_[i].images = {folder() / fmt::format("{}.png", i)};
      put_image(i, std::string(static_cast<size_t>(i) + 2, 'x'));
    }
  }

  void put_image(int64_t sample, const std::string& content) const { put(fmt::format("{}.png", sample), content); }

  SampleIndex index(const std::string& processor = "p", const fs::path& cache = "cache") const {
    return index_samples(
        records_, *processor_,
        {.num_workers = 3, .cache = cache.empty() ? cache : folder() / cache, .processor_key = processor});
  }

  io::InMemoryRecords records_ = make_records(40);
  std::optional<FileSizeProcessor> processor_;
};

TEST_F(SampleIndexTest, CollectsShapesAndProblems) {
  fs::remove(folder() / "7.png");
  records_[9].problem = "no turns";
  const SampleIndex index_result = index("p", {});
  ASSERT_EQ(index_result.shapes.size(), 40);
  EXPECT_EQ(index_result.shapes[0]->tokens, 2);
  EXPECT_EQ(index_result.shapes[39]->tokens, 41);
  EXPECT_FALSE(index_result.shapes.is_known(7) || index_result.shapes.is_known(9));
  ASSERT_EQ(index_result.problems.size(), 2U);
  EXPECT_EQ(index_result.problems.at(7).reason, "unreadable image");
  EXPECT_EQ(index_result.problems.at(9).reason, "unusable record");
  EXPECT_EQ(index_result.num_usable_samples(), 38);
  EXPECT_FALSE(fs::exists(folder() / "cache"));
}

constexpr const char* kUnreadKey = R"(key "source" of a record)";
constexpr const char* kUnreadDetail = R"(key "detail" of an image block)";

TEST_F(SampleIndexTest, CountsNoticesWithAndWithoutACache) {
  for (const int64_t index : {3, 7, 39}) records_[index].notices = {{kUnreadKey, fmt::format("web {}", index)}};
  records_[7].notices.push_back({kUnreadDetail, "high"});
  records_[9].notices = {{kUnreadKey, "of a sample that is not used"}};
  records_[9].problem = "no turns";
  const SampleIndex index_result = index("p", {});
  ASSERT_EQ(index_result.notices.kinds().size(), 2U);
  EXPECT_EQ(index_result.notices.kinds().at(kUnreadKey),
            (NoticeCounts::Count{.samples = 3, .id = "s3", .example = "web 3"}));
  EXPECT_EQ(index_result.notices.kinds().at(kUnreadDetail),
            (NoticeCounts::Count{.samples = 1, .id = "s7", .example = "high"}));
  EXPECT_EQ(index().notices, index_result.notices);
  processor_->processed_ids();
  EXPECT_EQ(index().notices, index_result.notices);
  EXPECT_THAT(processor_->processed_ids(), UnorderedElementsAre());
}

TEST_F(SampleIndexTest, CachedNoticesFollowTheRecords) {
  for (const int64_t index : {3, 7}) records_[index].notices = {{kUnreadKey, "web"}};
  index();
  processor_->processed_ids();
  records_[3].notices = {{kUnreadDetail, "high"}};
  records_[7].notices = {};
  records_[8].notices = {{kUnreadKey, "book"}, {"a kind that comes last", ""}};
  const SampleIndex index_result = index();
  EXPECT_THAT(processor_->processed_ids(), UnorderedElementsAre("s3", "s7", "s8"));
  EXPECT_EQ(index_result.notices.kinds().at(kUnreadDetail).samples, 1);
  EXPECT_EQ(index_result.notices.kinds().at(kUnreadKey).samples, 1);
  EXPECT_EQ(index_result.notices.kinds().size(), 3U);
  EXPECT_EQ(index().notices.kinds().at("a kind that comes last").samples, 1);
  EXPECT_THAT(processor_->processed_ids(), UnorderedElementsAre());
}

TEST_F(SampleIndexTest, CountsFurtherKindsOfNoticesTogether) {
  for (int64_t index = 0; index < records_.size(); ++index) {
    for (int64_t i = 0; i < 10; ++i) records_[index].notices.push_back({fmt::format("kind {}", 10 * index + i), "x"});
  }
  const auto first = index().notices;
  EXPECT_EQ(first.kinds().size(), kMaxNoticeKinds + 1);
  EXPECT_EQ(first.kinds().at(kOtherNoticesKind).samples, 20);
  EXPECT_EQ(index().notices.kinds().at(kOtherNoticesKind).samples, 20);
}

TEST_F(SampleIndexTest, ReportsSamplesBeyondThePositionLimit) {
  processor_->limit = PositionLimit{.max_positions = 40, .key = "max_position_embeddings"};
  const std::string kind = "more positions than the model was made for (max_position_embeddings 40)";
  const auto expected = NoticeCounts::Count{.samples = 1, .id = "s39", .example = "41 positions of 41 tokens"};
  EXPECT_EQ(index().notices.kinds().at(kind), expected) << "40 fit";
  EXPECT_EQ(index().notices.kinds().at(kind).samples, 1);
  records_[39].notices = {{kUnreadKey, "web"}};
  EXPECT_EQ(index().notices.kinds().size(), 2U);
  processor_->processed_ids();
  EXPECT_EQ(index().notices.kinds().size(), 2U);
  EXPECT_THAT(processor_->processed_ids(), UnorderedElementsAre()) << "their notices are cached separately";
}

TEST_F(SampleIndexTest, FingerprintsMatchEqualContentAndAnySpellingOfAFile) {
  const auto compute_fingerprints = [&](const io::Records& records, const char* cache) {
    return index_samples(records, *processor_, {.num_workers = 2, .cache = folder() / cache, .keep_fingerprints = true})
        .fingerprints;
  };
  auto trained = compute_fingerprints(records_, "trained");
  io::InMemoryRecords evaluated = make_records(3);
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
    const auto shared = find_shared_content(compute_fingerprints(evaluated, "evaluated"), trained);
    EXPECT_THAT(shared.samples, ElementsAre(0));
    EXPECT_THAT(shared.samples_with_shared_files, ElementsAre(1));
  }
  EXPECT_TRUE(index().fingerprints.content_hashes.empty()) << "not requested";
}

TEST_F(SampleIndexTest, MaxSamplesAreSpreadOverTheDataSet) {
  const SampleIndex index_result = index_samples(records_, *processor_, {.num_workers = 2, .max_samples = 4});
  std::vector<int64_t> indexed;
  for (int64_t i = 0; i < index_result.shapes.size(); ++i) {
    if (index_result.shapes.is_known(i)) indexed.push_back(i);
  }
  EXPECT_THAT(indexed, ElementsAre(0, 10, 20, 30));
}

TEST_F(SampleIndexTest, ReusesUnchangedSamples) {
  const SampleIndex first = index();
  EXPECT_EQ(first.num_cached_shapes, 0);
  EXPECT_EQ(processor_->processed_ids().size(), 40U);
  const SampleIndex second = index();
  EXPECT_THAT(processor_->processed_ids(), UnorderedElementsAre());
  EXPECT_EQ(second.num_cached_shapes, 40);
  EXPECT_EQ(second.num_changed_samples, 0);
  EXPECT_EQ(second.shapes, first.shapes);
  EXPECT_EQ(first.decode_bytes, 1041) << "of the largest file, which has 41 bytes";
  EXPECT_EQ(second.decode_bytes, first.decode_bytes);
  EXPECT_EQ(first.shrink_infos.size(), 3U);
  EXPECT_EQ(first.shrink_infos.at(39).tokens, 41);
  EXPECT_EQ(second.shrink_infos, first.shrink_infos);
}

TEST_F(SampleIndexTest, CacheMayBeReadOnly) {
  const SampleIndexSettings settings{
      .num_workers = 1, .cache = folder() / "cache", .write_cache = false, .processor_key = "p"};
  index_samples(records_, *processor_, settings);
  EXPECT_FALSE(fs::exists(folder() / "cache"));
  index();
  const std::string saved = read_contents(folder() / "cache");
  put_image(3, "another size");
  EXPECT_EQ(index_samples(records_, *processor_, settings).num_cached_shapes, 39);
  EXPECT_EQ(read_contents(folder() / "cache"), saved);
}

TEST_F(SampleIndexTest, ChecksChangedSamplesAgain) {
  const auto time = fs::last_write_time(folder() / "3.png");
  index();
  processor_->processed_ids();
  put_image(3, "y234");  // of another size
  put_image(5, "yyyyyyy");
  fs::last_write_time(folder() / "5.png", time);  // of the same size and date
  fs::remove(folder() / "8.png");
  records_[11].turns = {{.role = io::Role::kUser, .text = "Why?"}};
  const SampleIndex index_result = index();
  EXPECT_THAT(processor_->processed_ids(), UnorderedElementsAre("s3", "s5", "s8", "s11"));
  EXPECT_EQ(index_result.shapes[3]->tokens, 4);
  EXPECT_EQ(index_result.problems.size(), 1U);
  EXPECT_EQ(index_result.num_changed_samples, 4);
  put_image(8, "yyyyyyyyyy");
  EXPECT_EQ(index().problems.size(), 0U) << "the file exists again";
  EXPECT_THAT(processor_->processed_ids(), UnorderedElementsAre("s8"));
}

TEST_F(SampleIndexTest, DoesNotReadRecordsOfUnchangedFiles) {
  CountingRecords counting_records(records_);
  const auto index_counted = [&] {
    processor_->processed_ids();
    counting_records.reads = 0;
    return index_samples(counting_records, *processor_,
                         {.num_workers = 3, .cache = folder() / "cache", .processor_key = "p"});
  };
  const SampleIndex first = index_counted();
  EXPECT_EQ(counting_records.reads, 40);
  const SampleIndex second = index_counted();
  EXPECT_EQ(counting_records.reads, 0);
  EXPECT_EQ(second.shapes, first.shapes);
  EXPECT_EQ(second.ids, first.ids);
  EXPECT_EQ(second.num_cached_shapes, 40);
  put_image(3, "y234");
  EXPECT_EQ(index_counted().shapes[3]->tokens, 4) << "its image has another size";
  EXPECT_EQ(counting_records.reads, 1);
  fs::remove(folder() / "7.png");
  EXPECT_EQ(index_counted().problems.size(), 1U);
  EXPECT_EQ(counting_records.reads, 1);
  put_image(7, "xxxxxxxxx");
  index_counted();
  counting_records.data_version_hash = 6;
  EXPECT_EQ(index_counted().num_cached_shapes, 40) << "a file that was written again with the same records";
  EXPECT_EQ(counting_records.reads, 40);
  index_counted();
  EXPECT_EQ(counting_records.reads, 0);
  counting_records.data_version_hash = 0;
  index_counted();
  index_counted();
  EXPECT_EQ(counting_records.reads, 40) << "records without a version hash are read";
}

/// A fast processor, for data sets of several chunks.
TEST_F(SampleIndexTest, IndexesALargeDataSetInChunks) {
  const FakeProcessor processor;
  auto records = make_records(20'000);
  records[12'345].problem = "no turns";
  const auto index_large = [&] {
    std::vector<int64_t> progress;
    auto index_result = index_samples(
        records, processor,
        {.num_workers = 2, .cache = folder() / "cache", .processor_key = "p", .on_progress = [&progress](int64_t done) {
           progress.push_back(done);
         }});
    EXPECT_TRUE(std::ranges::is_sorted(progress));
    return index_result;
  };
  const SampleIndex first = index_large();
  EXPECT_EQ(first.num_usable_samples(), 19'999);
  EXPECT_EQ(first.ids[12'345], "s12345");
  EXPECT_EQ(first.ids[19'999], "s19999");
  const std::string saved = read_contents(folder() / "cache");
  const SampleIndex second = index_large();
  EXPECT_EQ(second.num_cached_shapes, 19'999);
  EXPECT_EQ(second.shapes, first.shapes);
  EXPECT_EQ(second.ids, first.ids);
  EXPECT_EQ(read_contents(folder() / "cache"), saved);
  // The parts before the first changed one are reused.
  records[9'000].turns.push_back({.role = io::Role::kAssistant, .text = "more"});
  EXPECT_EQ(index_large().num_changed_samples, 1);
  EXPECT_NE(read_contents(folder() / "cache"), saved);
  EXPECT_EQ(index_large().num_cached_shapes, 19'999);
  records = make_records(20'000);
  EXPECT_EQ(index_large().num_cached_shapes, 19'998);
  EXPECT_EQ(index_large().num_cached_shapes, 20'000);
}

TEST_F(SampleIndexTest, FramesOfAFolderAreCheckedOneByOne) {
  fs::create_directory(folder() / "clip");
  std::ofstream(folder() / "clip/1.png") << "a";
  for (int64_t i = 0; i < records_.size(); ++i) records_[i].videos = {folder() / "clip"};
  index();
  processor_->processed_ids();
  index();
  EXPECT_EQ(processor_->processed_ids().size(), 0U);
  std::ofstream(folder() / "clip/1.png", std::ios::app) << "b";
  index();
  EXPECT_EQ(processor_->processed_ids().size(), 40U);
}

TEST_F(SampleIndexTest, RetriesBadSamplesAtEachStart) {
  fs::remove(folder() / "7.png");
  index();
  processor_->processed_ids();
  index();
  EXPECT_THAT(processor_->processed_ids(), UnorderedElementsAre("s7"));
}

TEST_F(SampleIndexTest, IgnoresAForeignOrDamagedCache) {
  const SampleIndex expected = index();
  std::ifstream stream(folder() / "cache");
  const std::string content{std::istreambuf_iterator<char>(stream), {}};
  const auto expect_ignored = [&](const std::string& damaged, const char* what) {
    std::ofstream(folder() / "cache") << damaged;
    processor_->processed_ids();
    const SampleIndex index_result = index();
    EXPECT_EQ(index_result.num_cached_shapes, 0) << what;
    EXPECT_EQ(index_result.shapes, expected.shapes) << what;
  };
  std::string flipped = content;
  flipped[content.size() - 20] = flipped[content.size() - 20] == '1' ? '2' : '1';
  expect_ignored(flipped, "a digit");
  expect_ignored(content.substr(0, content.size() / 2), "half");
  expect_ignored(content.substr(0, content.rfind('\n', content.size() - 2) + 1), "the last line");
  expect_ignored("", "empty");
  expect_ignored("{}\n", "another file");
  expect_ignored(std::string(100'000, '['), "hostile");
  index();
  EXPECT_EQ(index("another processor").num_cached_shapes, 0);
  EXPECT_EQ(index("another processor").num_cached_shapes, 40);
  fs::remove(folder() / "cache");
  fs::create_directory(folder() / "cache");
  EXPECT_EQ(index().shapes, expected.shapes) << "a folder in its place";
}

/// A processor whose process_headers() may throw or wait.
class FaultyProcessor : public FakeProcessor {
 public:
  explicit FaultyProcessor(std::function<void(int64_t index)> fault) : fault_(std::move(fault)) {}

  Sample process_headers(const io::Record& record, int64_t index) const override {
    fault_(index);
    return FakeProcessor::process_headers(record, index);
  }

 private:
  std::function<void(int64_t index)> fault_;
};

TEST_F(SampleIndexTest, RethrowsErrorsOfTheProgram) {
  const FaultyProcessor broken_processor([](int64_t index) {
    if (index == 17) throw InternalError("a bug");
  });
  EXPECT_THROW(index_samples(records_, broken_processor, {.num_workers = 4}), InternalError);
}

TEST_F(SampleIndexTest, ProgressCallbackMayThrow) {
  const FaultyProcessor slow_processor([](int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  const auto records = make_records(100'000);
  EXPECT_THROW(index_samples(records, slow_processor,
                             {.num_workers = 2, .on_progress = [](int64_t) { throw run_error("enough"); }}),
               UserError);
}

}  // namespace
}  // namespace vlmtrain::data
