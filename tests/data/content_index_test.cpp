#include "vlmtrain/data/index/content_index.h"

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "vlmtrain/data/index/sample_index.h"

namespace vlmtrain::data {

namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

class ContentIndexTest : public io::TemporaryFolderTest {
 protected:
  static io::Record record(const std::string& id, const std::string& question, std::vector<io::MediaRef> images) {
    io::Record record;
    record.id = id;
    record.turns = {{io::Role::kUser, question}, {io::Role::kAssistant, "yes"}};
    record.images = std::move(images);
    return record;
  }

  static std::unique_ptr<ContentIndex> make_index(const io::Records& records, const io::Records& other = kNone) {
    auto index = std::make_unique<ContentIndex>();
    EXPECT_EQ(index->add_dataset(records, 3), 0U);
    EXPECT_EQ(index->add_dataset(other, 2), 1U);
    index->hash_possible_duplicates(2);
    return index;
  }

  static inline const io::InMemoryRecords kNone;
};

TEST_F(ContentIndexTest, FindsDuplicatesRegardlessOfFileNames) {
  const auto a = put("a.png", "picture one"), copy = put("copy.png", "picture one"), b = put("b.png", "picture two");
  const io::InMemoryRecords records({record("1", "what?", {a}), record("2", "what?", {b}), record("3", "what?", {copy}),
                                     record("4", "who?", {a}), record("5", "what?", {a}), record("6", "what?", {a, b}),
                                     record("7", "what?", {b, a})});
  const auto index = make_index(records);
  EXPECT_THAT(index->find_duplicate_records(0), ElementsAre(ElementsAre(0, 2, 4)));
  EXPECT_THAT(index->find_duplicate_files(), ElementsAre(ElementsAre(a.string(), copy.string())));
  EXPECT_EQ(index->num_distinct_media(), 3);
  EXPECT_THAT(index->find_missing_files(0), IsEmpty());
}

TEST_F(ContentIndexTest, ReportsSharedSubjectsWithTheirRecords) {
  const auto a = put("a.nii", "scan one");
  const auto make_scan_record = [&](const std::string& id, std::vector<std::string> subjects) {
    io::Record scan_record = record(id, "what " + id, {a});
    scan_record.subject_ids = std::move(subjects);
    return scan_record;
  };
  const io::InMemoryRecords trained(
      {make_scan_record("1", {"sub-1"}), make_scan_record("2", {"sub-2", "sub-3"}), make_scan_record("3", {})});
  const io::InMemoryRecords evaluated({make_scan_record("4", {"sub-4"}), make_scan_record("5", {"sub-9", "sub-3"}),
                                       make_scan_record("6", {}), make_scan_record("7", {"sub-3"})});
  const auto index = make_index(trained, evaluated);
  EXPECT_TRUE(index->has_subjects(1));
  const SharedSubjects shared = index->find_shared_subjects(1, 0);
  EXPECT_THAT(shared.subject_names, ElementsAre("sub-3"));
  EXPECT_THAT(shared.record_indices, ElementsAre(1, 3));
  EXPECT_THAT(index->find_shared_subjects(0, 0).subject_names, ElementsAre("sub-1", "sub-2", "sub-3"));
  EXPECT_FALSE(make_index(trained)->has_subjects(1));
}

TEST_F(ContentIndexTest, DistinguishesModalities) {
  io::MediaRef first = put("a.nii", "scan one"), second = first;
  second.modality = "T2w";
  const io::InMemoryRecords records({record("1", "what?", {first}), record("2", "what?", {second})});
  EXPECT_THAT(make_index(records)->find_duplicate_records(0), IsEmpty());
}

/// Files of one size whose first 64 KiB are equal are read to their end.
TEST_F(ContentIndexTest, ComparesFilesToTheirEnd) {
  const std::string begin(size_t{200} << 10, 'x');
  const auto a = put("a.png", begin + "a"), b = put("b.png", begin + "b"), c = put("c.png", begin + "a");
  const io::InMemoryRecords records({record("1", "what?", {a}), record("2", "what?", {b}), record("3", "what?", {c})});
  const auto index = make_index(records);
  EXPECT_THAT(index->find_duplicate_records(0), ElementsAre(ElementsAre(0, 2)));
  EXPECT_THAT(index->find_duplicate_files(), ElementsAre(ElementsAre(a.string(), c.string())));
}

TEST_F(ContentIndexTest, EmbeddedBytesMatchAFileOfThem) {
  for (const size_t size : {size_t{5}, size_t{64} << 10, (size_t{128} << 10) + 1}) {
    SCOPED_TRACE(size);
    const std::string content(size, 'p');
    const auto file = put("a.png", content);
    io::MediaRef embedded("row 3");
    embedded.bytes = std::make_shared<const std::string>(content);
    const io::InMemoryRecords records({record("1", "what?", {file}), record("2", "what?", {embedded})});
    EXPECT_THAT(make_index(records)->find_duplicate_records(0), ElementsAre(ElementsAre(0, 1)));
  }
}

TEST_F(ContentIndexTest, ReportsMissingFiles) {
  const auto pipe = folder() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto nowhere = folder() / "nowhere.png";
  const io::InMemoryRecords records({record("1", "a", {put("a.png", "x")}), record("2", "b", {nowhere, pipe}),
                                     record("3", "c", {nowhere, nowhere}), record("4", "d", {folder()})});
  const auto missing_files = make_index(records)->find_missing_files(0);
  ASSERT_EQ(missing_files.size(), 2U);
  EXPECT_EQ(missing_files[0].path, nowhere.string());
  EXPECT_EQ(missing_files[0].reason, "No such file or directory");
  EXPECT_EQ(missing_files[0].first_record_index, 1);
  EXPECT_EQ(missing_files[0].num_records, 2);
  EXPECT_EQ(missing_files[1].path, pipe.string());
  EXPECT_EQ(missing_files[1].reason, "is not a file");
}

TEST_F(ContentIndexTest, FindsSharedRecordsAndMedia) {
  const auto a = put("a.png", "one"), b = put("b.png", "two"), renamed = put("again.png", "two"),
             c = put("c.png", "333");
  const io::InMemoryRecords train({record("1", "what?", {a}), record("2", "what?", {b})});
  const io::InMemoryRecords eval(
      {record("x", "what?", {c}), record("y", "what?", {renamed}), record("z", "who?", {a})});
  const auto index = make_index(train, eval);
  EXPECT_THAT(index->find_shared_records(1, 0), ElementsAre(Pair(1, 1)));
  EXPECT_THAT(index->find_records_sharing_media(1, 0), ElementsAre(1, 2));
  EXPECT_THAT(index->find_duplicate_records(0), IsEmpty());
}

TEST_F(ContentIndexTest, SkipsUnusableRecords) {
  io::Record bad = record("1", "what?", {});
  bad.problem = "no turns";
  const io::InMemoryRecords records({bad, bad});
  const auto index = make_index(records);
  EXPECT_THAT(index->find_duplicate_records(0), IsEmpty());
}

TEST_F(ContentIndexTest, ResultDoesNotDependOnThreads) {
  std::vector<io::Record> records;
  for (int i = 0; i < 500; ++i) {
    const auto file = put(std::to_string(i) + ".png", "picture " + std::to_string(i % 7));
    records.push_back(record(std::to_string(i), "what?", {file}));
  }
  const io::InMemoryRecords list(std::move(records));
  const auto index = make_index(list);
  const auto duplicates = index->find_duplicate_records(0);
  ASSERT_EQ(duplicates.size(), 7U);
  EXPECT_EQ(duplicates[3].front(), 3);
  EXPECT_EQ(duplicates[3].size(), 71U);
  EXPECT_EQ(index->find_duplicate_files().size(), 7U);
}

TEST(ContentFingerprints, FindsSharedSamplesAndFiles) {
  ContentFingerprints train_fingerprints{.content_hashes = {50, 0, 30, 10}, .file_hashes = {{7, 0}, {3, 2}, {5, 3}}};
  const ContentFingerprints eval_fingerprints{.content_hashes = {0, 10, 20, 50, 60},
                                              .file_hashes = {{5, 1}, {3, 2}, {4, 2}, {3, 4}, {7, 4}, {9, 0}}};
  const SharedContent shared = find_shared_content(eval_fingerprints, train_fingerprints);
  EXPECT_THAT(shared.samples, ElementsAre(1, 3)) << "0 is that of a sample which is not usable";
  EXPECT_THAT(shared.samples_with_shared_files, ElementsAre(2, 4)) << "each once, without duplicates";
}

TEST(ContentFingerprints, SharesNothingWithAnEmptyDataSet) {
  ContentFingerprints empty;
  const SharedContent shared = find_shared_content({.content_hashes = {1, 2}, .file_hashes = {{3, 0}}}, empty);
  EXPECT_THAT(shared.samples, IsEmpty());
  EXPECT_THAT(shared.samples_with_shared_files, IsEmpty());
}

}  // namespace

}  // namespace vlmtrain::data
