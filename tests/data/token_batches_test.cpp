#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "data/fake_processor.h"
#include "vlmtrain/data/loader.h"

namespace vlmtrain::data {
namespace {

size_t tokens_of(const io::Record& record) {
  return std::stoul(record.place);
}

/// Samples of as many tokens as their record's place says; every seventh is bad.
class LinesOfTokens : public SampleProcessor {
 public:
  Sample process(const io::Record& record, int64_t index) const override {
    if (index % 7 == 6) reject(index);
    Sample sample;
    sample.index = index;
    sample.token_ids.assign(tokens_of(record), 1);
    sample.is_label.assign(tokens_of(record), 0);
    sample.is_label.back() = 1;
    return sample;
  }
  Sample outline(const io::Record& record, int64_t index) const override { return process(record, index); }
};

io::RecordList records_with(const std::vector<int64_t>& tokens) {
  auto records = make_records(std::ssize(tokens));
  for (int64_t i = 0; i < records.size(); ++i) records[i].place = std::to_string(tokens[static_cast<size_t>(i)]);
  return records;
}

int64_t tokens_of(const GlobalBatch& batch) {
  return std::accumulate(batch.samples.begin(), batch.samples.end(), int64_t{0},
                         [](int64_t sum, const Sample& sample) { return sum + sample.tokens(); });
}

class TokenBatchesTest : public testing::Test {
 protected:
  std::vector<GlobalBatch> draw(int64_t batches, LoaderSettings settings, uint64_t seed = 0, const Cursor& start = {}) {
    settings.on_bad_sample = BadSamplePolicy::kSkip;
    Ledger ledger("train.json", records_.size());
    OneLaneLoader loader(records_, processor_, settings, seed, start, ledger);
    std::vector<GlobalBatch> drawn;
    for (int64_t i = 0; i < batches; ++i) drawn.push_back(loader.next());
    return drawn;
  }

  io::RecordList records_ = records_with({5, 9, 3, 30, 7, 2, 8, 11, 4, 6, 2, 3, 25, 9, 13, 3});
  const LinesOfTokens processor_;
};

/// One order, by hand: the batch of each step from the samples in the order in which a step of one sample gives them.
TEST_F(TokenBatchesTest, AStepComesAsNearToItsTokensAsWholeSamplesAllow) {
  constexpr int64_t kGoal = 20;
  std::vector<int64_t> sizes;
  for (const auto& batch : draw(60, {.global_batch_size = 1}, 4)) sizes.push_back(tokens_of(batch));
  std::vector<std::vector<int64_t>> wanted{{}};
  for (const int64_t size : sizes) {
    const auto sum = [&] { return std::accumulate(wanted.back().begin(), wanted.back().end(), int64_t{0}); };
    if (sum() >= kGoal) wanted.emplace_back();
    const int64_t before = sum();
    if (before > 0 && before + size > kGoal && before + size - kGoal > kGoal - before) wanted.emplace_back();
    wanted.back().push_back(size);
  }
  wanted.pop_back();
  ASSERT_GE(wanted.size(), 15U);
  const auto drawn = draw(std::ssize(wanted), {.global_batch_size = 100, .global_batch_tokens = kGoal}, 4);
  bool is_over = false, is_under = false;
  for (size_t i = 0; i < wanted.size(); ++i) {
    std::vector<int64_t> found;
    for (const auto& sample : drawn[i].samples) found.push_back(sample.tokens());
    EXPECT_EQ(found, wanted[i]) << "step " << i;
    EXPECT_EQ(drawn[i].label_tokens, std::ssize(found));
    is_over |= tokens_of(drawn[i]) > kGoal;
    is_under |= tokens_of(drawn[i]) < kGoal;
  }
  EXPECT_TRUE(is_over && is_under);
}

TEST_F(TokenBatchesTest, NeverTakesMoreSamplesThanTheGlobalBatchSizeNorNone) {
  for (const auto& batch : draw(30, {.global_batch_size = 2, .global_batch_tokens = 1000})) {
    EXPECT_EQ(batch.samples.size(), 2U);
  }
  for (const auto& batch : draw(30, {.global_batch_size = 2, .global_batch_tokens = 1})) {
    EXPECT_EQ(batch.samples.size(), 1U);
  }
}

TEST_F(TokenBatchesTest, GoesOnAtAnyStepAsIfItHadNotStopped) {
  const LoaderSettings settings{.global_batch_size = 8, .global_batch_tokens = 20, .num_workers = 3};
  const auto whole = draw(20, settings, 9);
  const auto key = [](const Sample& sample) { return std::pair(sample.index, sample.seed); };
  for (size_t done = 1; done < whole.size(); ++done) {
    const auto rest = draw(1, settings, 9, whole[done - 1].next);
    ASSERT_EQ(rest[0].samples.size(), whole[done].samples.size());
    for (size_t i = 0; i < rest[0].samples.size(); ++i) EXPECT_EQ(key(rest[0].samples[i]), key(whole[done].samples[i]));
    EXPECT_EQ(rest[0].next, whole[done].next);
  }
}

}  // namespace
}  // namespace vlmtrain::data
