#include "vlmtrain/data/index/text_windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/fake_processor.h"
#include "vlmtrain/data/index/content_index.h"

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;

/// A processor whose documents have as many tokens as their text has characters. Longer ones than
/// 8 are too long, and one with "?" cannot be used.
class LetterProcessor final : public FakeProcessor {
 public:
  Sample process_headers(const io::Record& record, int64_t /*index*/) const override {
    const std::string& text = record.turns.front().text;
    if (text.find('?') != std::string::npos) throw SampleError("bad", "a bad text");
    if (text.size() > 8) throw SampleTooLongError(std::ssize(text), "too long");
    Sample sample;
    sample.token_ids.resize(text.size());
    return sample;
  }
};

io::Record make_document(const std::string& text) {
  io::Record record;
  record.id = text;
  record.location = "line 1";
  record.turns = {{io::Role::kDocument, text}};
  return record;
}

std::shared_ptr<const io::Records> make_mixed_records() {
  io::Record conversation = make_document("a conversation");
  conversation.turns = {{io::Role::kUser, "a long question"}, {io::Role::kAssistant, "a long answer"}};
  io::Record with_image = make_document("a long <image>");
  with_image.images = {{"a.jpg"}};
  return std::make_shared<io::InMemoryRecords>(
      std::vector<io::Record>{make_document("abcd"), make_document("abcdefg"), conversation, with_image,
                              make_document("much longer"), make_document("a bad one?")});
}

TEST(RecordWindows, OnlyTextsWithoutMediaAreSplit) {
  EXPECT_THAT(count_record_windows(*make_mixed_records(), LetterProcessor(), 4, 2), ElementsAre(1, 2, 1, 1, 4, 1));
}

TEST(RecordWindows, EachWindowIsARecord) {
  const auto base = make_mixed_records();
  const WindowedRecords records(base, {1, 2, 1, 1, 4, 1}, 4);
  ASSERT_EQ(records.size(), 10);
  EXPECT_FALSE(records.at(0).window);
  EXPECT_EQ(records.at(0).id, "abcd");
  for (int64_t i = 0; i < 2; ++i) {
    const io::Record window = records.at(1 + i);
    ASSERT_TRUE(window.window);
    EXPECT_EQ(window.window->index, i);
    EXPECT_EQ(window.window->first_token(), 3 * i);
    EXPECT_EQ(window.turns.at(0).text, "abcdefg");
    EXPECT_EQ(window.id, fmt::format("abcdefg, window {}", i + 1));
    EXPECT_EQ(window.location, fmt::format("line 1, window {} of 2", i + 1));
  }
  EXPECT_EQ(records.at(3).id, "a conversation");
  EXPECT_EQ(records.at_without_media_bytes(8).id, "much longer, window 4");
  EXPECT_EQ(records.at(9).id, "a bad one?");
}

/// A record set with blocks and a version.
class BlockRecords final : public io::Records {
 public:
  explicit BlockRecords(uint64_t version) : version_(version) {}
  int64_t size() const override { return 4; }
  io::Record at(int64_t index) const override { return make_document(fmt::format("{}", index)); }
  std::vector<int64_t> block_starts() const override { return {0, 2}; }
  uint64_t version_hash() const override { return version_; }

 private:
  uint64_t version_;
};

TEST(RecordWindows, BlocksBeginWithTheFirstWindowOfARecord) {
  const WindowedRecords records(std::make_shared<BlockRecords>(7), {3, 1, 2, 1}, 4);
  EXPECT_THAT(records.block_starts(), ElementsAre(0, 4));
}

TEST(RecordWindows, VersionDependsOnWindows) {
  const auto hash = [](uint64_t version, const std::vector<int64_t>& counts, int64_t tokens) {
    return WindowedRecords(std::make_shared<BlockRecords>(version), counts, tokens).version_hash();
  };
  EXPECT_EQ(hash(7, {1, 1, 2, 1}, 4), hash(7, {1, 1, 2, 1}, 4));
  EXPECT_NE(hash(7, {1, 1, 2, 1}, 4), hash(7, {1, 2, 1, 1}, 4));
  EXPECT_NE(hash(7, {1, 1, 2, 1}, 4), hash(7, {1, 1, 2, 1}, 5));
  EXPECT_NE(hash(7, {1, 1, 2, 1}, 4), hash(8, {1, 1, 2, 1}, 4));
  EXPECT_EQ(hash(0, {1, 1, 2, 1}, 4), 0U) << "unknown";
}

TEST(RecordWindows, WindowsOfATextAreNoDuplicates) {
  const WindowedRecords records(std::make_shared<BlockRecords>(7), {3, 1, 1, 1}, 4);
  ContentIndex index;
  index.add_dataset(records, 1);
  index.hash_possible_duplicates(1);
  EXPECT_THAT(index.find_duplicate_records(0), testing::IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::data
