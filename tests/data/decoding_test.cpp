#include "vlmtrain/data/decoding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

namespace vlmtrain::data {
namespace {

using testing::IsEmpty;
using testing::Key;
using testing::UnorderedElementsAre;

/// Of pictures called bad…, the pixels cannot be made.
class HalfBlind : public SampleProcessor {
 public:
  Sample process(const io::Record& record, int64_t index) const override {
    const std::lock_guard lock(mutex_);
    made_.insert(index);
    for (const auto& picture : record.images) {
      if (picture.path.starts_with("bad")) throw SampleError("unreadable image", picture.path + " is cut off");
    }
    return outline(record, index);
  }
  Sample outline(const io::Record& record, int64_t index) const override {
    Sample sample;
    sample.index = index;
    sample.id = record.id;
    sample.token_ids = {1, 2};
    sample.is_label = {0, 1};
    return sample;
  }
  std::set<int64_t> made() const { return std::exchange(made_, {}); }

 private:
  mutable std::mutex mutex_;
  mutable std::set<int64_t> made_;
};

class DecodingTest : public testing::Test {
 protected:
  /// `masks`: the files of each record's masks; none: no masks.
  std::map<int64_t, SampleProblem> decode(const std::vector<std::vector<io::Medium>>& images,
                                          const std::vector<std::vector<io::MaskSource>>& masks = {}) {
    std::vector<io::Record> all(images.size());
    for (size_t i = 0; i < images.size(); ++i) {
      all[i].id = std::to_string(i);
      all[i].images = images[i];
      if (!masks.empty()) all[i].masks = masks[i];
    }
    const io::RecordList records(std::move(all));
    Outlines outlines = outline_samples(records, processor_, {});
    outlines.problems = unusable_;
    ContentIndex index;
    index.add(records, 1);
    return decode_all(records, processor_, outlines, index, 0, 2);
  }

  HalfBlind processor_;
  std::map<int64_t, SampleProblem> unusable_;
};

TEST_F(DecodingTest, EachPictureIsMadeOnce) {
  EXPECT_THAT(decode({{"a"}, {"a"}, {"b"}, {"a", "b"}, {}, {"b", "c"}}), IsEmpty());
  EXPECT_EQ(processor_.made(), (std::set<int64_t>{0, 2, 5}));
}

/// Masks of one picture: each file is read, and each value in it.
TEST_F(DecodingTest, EachMaskIsMadeOnce) {
  const io::MaskSource one{.file = "1.png"}, other{.file = "2.png"}, value{.file = "1.png", .value = 7};
  const io::MaskSource encoded{.rle = io::Rle{.height = 1, .width = 2, .counts = {2}}};
  EXPECT_THAT(decode({{"a"}, {"a"}, {"a"}, {"a"}, {"a"}, {"a"}}, {{one}, {other}, {one}, {value}, {encoded}, {}}),
              IsEmpty());
  EXPECT_EQ(processor_.made(), (std::set<int64_t>{0, 1, 3}));
}

TEST_F(DecodingTest, AllSamplesOfABadPictureAreFound) {
  const auto problems = decode({{"bad"}, {"a"}, {"bad"}, {"a", "bad"}, {"a"}, {"b"}});
  EXPECT_THAT(problems, UnorderedElementsAre(Key(0), Key(2), Key(3)));
  EXPECT_EQ(problems.at(3).message, "bad is cut off");
}

/// The good pictures of a bad sample are no fault of the others that have them.
TEST_F(DecodingTest, WhatStandsBesideABadPictureIsLookedAtAgain) {
  EXPECT_THAT(decode({{"bad", "a"}, {"a"}, {"a", "b"}, {"b"}}), UnorderedElementsAre(Key(0)));
  EXPECT_EQ(processor_.made(), (std::set<int64_t>{0, 1, 2}));
}

TEST_F(DecodingTest, WhatIsKnownToBeBadIsNotMade) {
  unusable_.emplace(0, SampleProblem{.reason = "too long", .message = "long"});
  EXPECT_THAT(decode({{"bad"}, {"bad"}}), UnorderedElementsAre(Key(1)));
  EXPECT_EQ(processor_.made(), (std::set<int64_t>{1}));
}

}  // namespace
}  // namespace vlmtrain::data
