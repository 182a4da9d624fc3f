#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "data/fake_processor.h"
#include "vlmtrain/data/loader/loader.h"

namespace vlmtrain::data {
namespace {

size_t count_tokens(const io::Record& record) {
  return std::stoul(record.location);
}

/// A processor of samples whose number of tokens is the record's location; every seventh is bad.
class TokenCountProcessor : public SampleProcessor {
 public:
  Sample process(const io::Record& record, int64_t index) const override {
    if (index % 7 == 6) throw_too_long(index);
    Sample sample;
    sample.index = index;
    sample.token_ids.assign(count_tokens(record), 1);
    sample.label_mask.assign(count_tokens(record), 0);
    sample.label_mask.back() = 1;
    return sample;
  }
  Sample process_headers(const io::Record& record, int64_t index) const override { return process(record, index); }
};

io::InMemoryRecords make_records_with_tokens(const std::vector<int64_t>& tokens) {
  auto records = make_records(std::ssize(tokens));
  for (int64_t i = 0; i < records.size(); ++i) records[i].location = std::to_string(tokens[static_cast<size_t>(i)]);
  return records;
}

int64_t count_tokens(const GlobalBatch& batch) {
  return std::accumulate(batch.samples.begin(), batch.samples.end(), int64_t{0},
                         [](int64_t sum, const Sample& sample) { return sum + sample.tokens(); });
}

class TokenBatchesTest : public testing::Test {
 protected:
  std::vector<GlobalBatch> draw(int64_t batches, LoaderSettings settings, uint64_t seed = 0, const Cursor& start = {}) {
    settings.on_bad_sample = BadSamplePolicy::kSkip;
    Ledger ledger("train.json", records_.size());
    SingleSourceLoader loader(records_, processor_, settings, seed, start, ledger);
    std::vector<GlobalBatch> result;
    for (int64_t i = 0; i < batches; ++i) result.push_back(loader.next());
    return result;
  }

  io::InMemoryRecords records_ = make_records_with_tokens({5, 9, 3, 30, 7, 2, 8, 11, 4, 6, 2, 3, 25, 9, 13, 3});
  const TokenCountProcessor processor_;
};

/// Computes the expected batches independently, from the order of a loader with batches of one
/// sample.
TEST_F(TokenBatchesTest, StepIsAsNearToItsTokensAsWholeSamplesAllow) {
  constexpr int64_t kGoal = 20;
  std::vector<int64_t> sizes;
  for (const auto& batch : draw(60, {.global_batch_size = 1}, 4)) sizes.push_back(count_tokens(batch));
  std::vector<std::vector<int64_t>> expected{{}};
  for (const int64_t size : sizes) {
    const auto sum = [&] { return std::accumulate(expected.back().begin(), expected.back().end(), int64_t{0}); };
    if (sum() >= kGoal) expected.emplace_back();
    const int64_t tokens_before = sum();
    if (tokens_before > 0 && tokens_before + size > kGoal && tokens_before + size - kGoal > kGoal - tokens_before)
      expected.emplace_back();
    expected.back().push_back(size);
  }
  expected.pop_back();
  ASSERT_GE(expected.size(), 15U);
  const auto drawn_batches = draw(std::ssize(expected), {.global_batch_size = 100, .global_batch_tokens = kGoal}, 4);
  bool is_over = false, is_under = false;
  for (size_t i = 0; i < expected.size(); ++i) {
    std::vector<int64_t> tokens;
    for (const auto& sample : drawn_batches[i].samples) tokens.push_back(sample.tokens());
    EXPECT_EQ(tokens, expected[i]) << "step " << i;
    EXPECT_EQ(drawn_batches[i].label_tokens, std::ssize(tokens));
    is_over |= count_tokens(drawn_batches[i]) > kGoal;
    is_under |= count_tokens(drawn_batches[i]) < kGoal;
  }
  EXPECT_TRUE(is_over && is_under);
}

TEST_F(TokenBatchesTest, TakesBetweenOneAndGlobalBatchSizeSamples) {
  for (const auto& batch : draw(30, {.global_batch_size = 2, .global_batch_tokens = 1000})) {
    EXPECT_EQ(batch.samples.size(), 2U);
  }
  for (const auto& batch : draw(30, {.global_batch_size = 2, .global_batch_tokens = 1})) {
    EXPECT_EQ(batch.samples.size(), 1U);
  }
}

TEST_F(TokenBatchesTest, ResumesAtAnyStep) {
  const LoaderSettings settings{.global_batch_size = 8, .global_batch_tokens = 20, .num_workers = 3};
  const auto uninterrupted = draw(20, settings, 9);
  const auto get_key = [](const Sample& sample) { return std::pair(sample.index, sample.seed); };
  for (size_t step = 1; step < uninterrupted.size(); ++step) {
    const auto resumed = draw(1, settings, 9, uninterrupted[step - 1].next);
    ASSERT_EQ(resumed[0].samples.size(), uninterrupted[step].samples.size());
    for (size_t i = 0; i < resumed[0].samples.size(); ++i)
      EXPECT_EQ(get_key(resumed[0].samples[i]), get_key(uninterrupted[step].samples[i]));
    EXPECT_EQ(resumed[0].next, uninterrupted[step].next);
  }
}

}  // namespace
}  // namespace vlmtrain::data
