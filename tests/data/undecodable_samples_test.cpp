#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "vlmtrain/data/index/content_index.h"
#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::data {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;

/// A processor that cannot decode images named bad….
class FailingDecoder : public SampleProcessor {
 public:
  Sample process(const io::Record& record, int64_t index) const override {
    const std::lock_guard lock(mutex_);
    decoded_.insert(index);
    for (const auto& image : record.images) {
      if (image.path.starts_with("bad")) throw SampleError("unreadable image", image.path + " is cut off");
    }
    return process_headers(record, index);
  }
  Sample process_headers(const io::Record& record, int64_t index) const override {
    Sample sample;
    sample.index = index;
    sample.id = record.id;
    sample.token_ids = {1, 2};
    sample.label_mask = {0, 1};
    return sample;
  }
  std::set<int64_t> decoded() const { return std::exchange(decoded_, {}); }

 private:
  mutable std::mutex mutex_;
  mutable std::set<int64_t> decoded_;
};

class DecodingTest : public testing::Test {
 protected:
  /// `masks`: of each record; empty: no record has masks.
  std::map<int64_t, SampleProblem> decode(const std::vector<std::vector<io::MediaRef>>& images,
                                          const std::vector<std::vector<io::MaskSource>>& masks = {}) {
    std::vector<io::Record> records_to_index(images.size());
    for (size_t i = 0; i < images.size(); ++i) {
      records_to_index[i].id = std::to_string(i);
      records_to_index[i].images = images[i];
      if (!masks.empty()) records_to_index[i].masks = masks[i];
    }
    const io::InMemoryRecords records(std::move(records_to_index));
    SampleIndex sample_index = index_samples(records, processor_, {});
    sample_index.problems = known_problems_;
    ContentIndex index;
    index.add_dataset(records, 1);
    return find_undecodable_samples(records, processor_, sample_index, index, 0, 2);
  }

  FailingDecoder processor_;
  std::map<int64_t, SampleProblem> known_problems_;
};

TEST_F(DecodingTest, DecodesEachImageOnce) {
  EXPECT_THAT(decode({{"a"}, {"a"}, {"b"}, {"a", "b"}, {}, {"b", "c"}}), IsEmpty());
  EXPECT_EQ(processor_.decoded(), (std::set<int64_t>{0, 2, 5}));
}

/// Masks of one image: each file and each value in it is decoded once.
TEST_F(DecodingTest, DecodesEachMaskOnce) {
  const io::MaskSource first_mask{.file = "1.png"}, second_mask{.file = "2.png"},
      labeled_mask{.file = "1.png", .value = 7};
  const io::MaskSource rle_mask{.rle = io::Rle{.height = 1, .width = 2, .counts = {2}}};
  EXPECT_THAT(decode({{"a"}, {"a"}, {"a"}, {"a"}, {"a"}, {"a"}},
                     {{first_mask}, {second_mask}, {first_mask}, {labeled_mask}, {rle_mask}, {}}),
              IsEmpty());
  EXPECT_EQ(processor_.decoded(), (std::set<int64_t>{0, 1, 3}));
}

TEST_F(DecodingTest, FindsAllSamplesOfABadImage) {
  const auto problems = decode({{"bad"}, {"a"}, {"bad"}, {"a", "bad"}, {"a"}, {"b"}});
  EXPECT_THAT(problems, UnorderedElementsAre(testing::Key(0), testing::Key(2), testing::Key(3)));
  EXPECT_EQ(problems.at(3).message, "bad is cut off");
}

/// Samples that share the good images of a bad sample are not bad.
TEST_F(DecodingTest, RechecksGoodImagesOfABadSample) {
  EXPECT_THAT(decode({{"bad", "a"}, {"a"}, {"a", "b"}, {"b"}}), UnorderedElementsAre(testing::Key(0)));
  EXPECT_EQ(processor_.decoded(), (std::set<int64_t>{0, 1, 2}));
}

TEST_F(DecodingTest, SkipsKnownBadSamples) {
  known_problems_.emplace(0, SampleProblem{.reason = "too long", .message = "long"});
  EXPECT_THAT(decode({{"bad"}, {"bad"}}), UnorderedElementsAre(testing::Key(1)));
  EXPECT_EQ(processor_.decoded(), (std::set<int64_t>{1}));
}

}  // namespace
}  // namespace vlmtrain::data
