#include "vlmtrain/data/content_index.h"

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

class ContentIndexTest : public io::TemporaryFolderTest {
 protected:
  static io::Record record(const std::string& id, const std::string& question, std::vector<io::Medium> images) {
    io::Record record;
    record.id = id;
    record.turns = {{io::Role::kUser, question}, {io::Role::kAssistant, "yes"}};
    record.images = std::move(images);
    return record;
  }

  static std::unique_ptr<ContentIndex> index_of(const io::Records& records, const io::Records& other = kNone) {
    auto index = std::make_unique<ContentIndex>();
    EXPECT_EQ(index->add(records, 3), 0U);
    EXPECT_EQ(index->add(other, 2), 1U);
    index->find_same(2);
    return index;
  }

  static inline const io::RecordList kNone;
};

TEST_F(ContentIndexTest, SameWordsAndPicturesAreTheSameWhateverTheirNames) {
  const auto a = put("a.png", "picture one"), copy = put("copy.png", "picture one"), b = put("b.png", "picture two");
  const io::RecordList records({record("1", "what?", {a}), record("2", "what?", {b}), record("3", "what?", {copy}),
                                record("4", "who?", {a}), record("5", "what?", {a}), record("6", "what?", {a, b}),
                                record("7", "what?", {b, a})});
  const auto index = index_of(records);
  EXPECT_THAT(index->same_records(0), ElementsAre(ElementsAre(0, 2, 4)));
  EXPECT_THAT(index->same_files(), ElementsAre(ElementsAre(a.string(), copy.string())));
  EXPECT_EQ(index->media(), 3);
  EXPECT_THAT(index->missing(0), IsEmpty());
}

TEST_F(ContentIndexTest, SubjectsInBothSetsAreToldWithTheirRecords) {
  const auto a = put("a.nii", "scan one");
  const auto of = [&](const std::string& id, std::vector<std::string> subjects) {
    io::Record one = record(id, "what " + id, {a});
    one.subjects = std::move(subjects);
    return one;
  };
  const io::RecordList trained({of("1", {"sub-1"}), of("2", {"sub-2", "sub-3"}), of("3", {})});
  const io::RecordList evaluated({of("4", {"sub-4"}), of("5", {"sub-9", "sub-3"}), of("6", {}), of("7", {"sub-3"})});
  const auto index = index_of(trained, evaluated);
  EXPECT_TRUE(index->names_subjects(1));
  const SharedSubjects shared = index->with_subjects_of(1, 0);
  EXPECT_THAT(shared.subjects, ElementsAre("sub-3"));
  EXPECT_THAT(shared.records, ElementsAre(1, 3));
  EXPECT_THAT(index->with_subjects_of(0, 0).subjects, ElementsAre("sub-1", "sub-2", "sub-3"));
  EXPECT_FALSE(index_of(trained)->names_subjects(1));
}

TEST_F(ContentIndexTest, AnotherModalityIsAnotherQuestion) {
  io::Medium first = put("a.nii", "scan one"), second = first;
  second.modality = "T2w";
  const io::RecordList records({record("1", "what?", {first}), record("2", "what?", {second})});
  EXPECT_THAT(index_of(records)->same_records(0), IsEmpty());
}

/// Files of one size whose first 64 KiB are equal are read to their end.
TEST_F(ContentIndexTest, WhatDiffersAtItsEndDiffers) {
  const std::string begin(size_t{200} << 10, 'x');
  const auto a = put("a.png", begin + "a"), b = put("b.png", begin + "b"), c = put("c.png", begin + "a");
  const io::RecordList records({record("1", "what?", {a}), record("2", "what?", {b}), record("3", "what?", {c})});
  const auto index = index_of(records);
  EXPECT_THAT(index->same_records(0), ElementsAre(ElementsAre(0, 2)));
  EXPECT_THAT(index->same_files(), ElementsAre(ElementsAre(a.string(), c.string())));
}

TEST_F(ContentIndexTest, CarriedBytesAreTheSameAsAFileOfThem) {
  for (const size_t size : {size_t{5}, size_t{64} << 10, (size_t{128} << 10) + 1}) {
    SCOPED_TRACE(size);
    const std::string content(size, 'p');
    const auto file = put("a.png", content);
    io::Medium carried("row 3");
    carried.bytes = std::make_shared<const std::string>(content);
    const io::RecordList records({record("1", "what?", {file}), record("2", "what?", {carried})});
    EXPECT_THAT(index_of(records)->same_records(0), ElementsAre(ElementsAre(0, 1)));
  }
}

TEST_F(ContentIndexTest, NamesWhatIsNotThere) {
  const auto pipe = folder() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto nowhere = folder() / "nowhere.png";
  const io::RecordList records({record("1", "a", {put("a.png", "x")}), record("2", "b", {nowhere, pipe}),
                                record("3", "c", {nowhere, nowhere}), record("4", "d", {folder()})});
  const auto missing = index_of(records)->missing(0);
  ASSERT_EQ(missing.size(), 2U);
  EXPECT_EQ(missing[0].path, nowhere.string());
  EXPECT_EQ(missing[0].reason, "No such file or directory");
  EXPECT_EQ(missing[0].first, 1);
  EXPECT_EQ(missing[0].records, 2);
  EXPECT_EQ(missing[1].path, pipe.string());
  EXPECT_EQ(missing[1].reason, "is no file");
}

TEST_F(ContentIndexTest, FindsWhatTwoDataSetsShare) {
  const auto a = put("a.png", "one"), b = put("b.png", "two"), again = put("again.png", "two"), c = put("c.png", "333");
  const io::RecordList train({record("1", "what?", {a}), record("2", "what?", {b})});
  const io::RecordList eval({record("x", "what?", {c}), record("y", "what?", {again}), record("z", "who?", {a})});
  const auto index = index_of(train, eval);
  EXPECT_THAT(index->also_in(1, 0), ElementsAre(Pair(1, 1)));
  EXPECT_THAT(index->with_media_of(1, 0), ElementsAre(1, 2));
  EXPECT_THAT(index->same_records(0), IsEmpty());
}

TEST_F(ContentIndexTest, RecordsThatCannotBeUsedAreLeftOut) {
  io::Record bad = record("1", "what?", {});
  bad.problem = "no turns";
  const io::RecordList records({bad, bad});
  const auto index = index_of(records);
  EXPECT_THAT(index->same_records(0), IsEmpty());
}

TEST_F(ContentIndexTest, ManyThreadsFindTheSame) {
  std::vector<io::Record> records;
  for (int i = 0; i < 500; ++i) {
    const auto file = put(std::to_string(i) + ".png", "picture " + std::to_string(i % 7));
    records.push_back(record(std::to_string(i), "what?", {file}));
  }
  const io::RecordList list(std::move(records));
  const auto index = index_of(list);
  const auto same = index->same_records(0);
  ASSERT_EQ(same.size(), 7U);
  EXPECT_EQ(same[3].front(), 3);
  EXPECT_EQ(same[3].size(), 71U);
  EXPECT_EQ(index->same_files().size(), 7U);
}

}  // namespace
}  // namespace vlmtrain::data
