#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/captured_log.h"
#include "data/fake_processor.h"
#include "vlmtrain/data/loader/loader.h"

namespace vlmtrain::data {
namespace {

using testing::HasSubstr;

constexpr int64_t kNumSamples = 70;
constexpr int64_t kGlobalBatch = 12;
constexpr int64_t kNumBatches = 20;

/// An all_gather between threads that represent ranks.
class ThreadGather {
 public:
  explicit ThreadGather(int64_t world_size) : barrier_(world_size), messages_(static_cast<size_t>(world_size)) {}

  std::vector<std::string> all_gather_strings(int64_t rank, const std::string& message) {
    messages_[static_cast<size_t>(rank)] = message;
    barrier_.arrive_and_wait();
    auto all_messages = messages_;
    barrier_.arrive_and_wait();
    return all_messages;
  }

 private:
  std::barrier<> barrier_;
  std::vector<std::string> messages_;
};

MixtureSource make_range_source(std::string name, int64_t begin, int64_t end) {
  MixtureSource source{.name = std::move(name), .samples = std::vector<int64_t>(static_cast<size_t>(end - begin))};
  std::iota(source.samples.begin(), source.samples.end(), begin);
  return source;
}

/// Two sources, drawn 2 : 1.
SampleOrder make_two_source_order() {
  return {{make_range_source("a", 0, 50), make_range_source("b", 50, kNumSamples)},
          {{.first_batch = 0, .shares = {2, 1}}},
          {.seed = 5},
          kNumSamples,
          {},
          {}};
}

/// Index and seed of a sample in a batch.
using Key = std::pair<int64_t, uint64_t>;

struct RankBatches {
  std::vector<std::vector<Key>> own_keys, all_keys;  // of each batch; all ascending
  std::vector<Cursor> next;
  nlohmann::ordered_json ledger;
  int64_t num_made = 0;
  std::string error;
};

RankBatches draw_rank(int64_t rank, int64_t world_size, ThreadGather& gather, const std::function<void(int64_t)>& fault,
                      BadSamplePolicy policy) {
  io::InMemoryRecords records = make_records(kNumSamples);
  for (int64_t i = 0; i < kNumSamples; i += 7) records[i].notices = {{"a kind", ""}, {fmt::format("kind {}", i), "x"}};
  const FakeProcessor processor(fault);
  const SampleOrder order = make_two_source_order();
  Ledger ledger("train.json", kNumSamples);
  RankBatches result;
  Loader loader(
      records, processor, order,
      {.global_batch_size = kGlobalBatch,
       .num_workers = 2,
       .on_bad_sample = policy,
       .shard = {.rank = rank,
                 .world_size = world_size,
                 .all_gather_strings =
                     [&, rank](const std::string& message) { return gather.all_gather_strings(rank, message); }}},
      {}, ledger);
  try {
    for (int64_t i = 0; i < kNumBatches; ++i) {
      const GlobalBatch batch = loader.next();
      std::map<int64_t, std::vector<io::Notice>> notices;
      auto& own_keys = result.own_keys.emplace_back();
      for (const Sample& sample : batch.samples) {
        EXPECT_EQ(sample.token_ids.at(1), 100 + sample.index);
        own_keys.emplace_back(sample.index, sample.seed);
        notices[sample.index] = sample.notices;
      }
      auto& all_keys = result.all_keys.emplace_back(own_keys);
      for (const auto& sample : batch.remote_samples) {
        all_keys.emplace_back(sample.index, sample.seed);
        notices[sample.index] = sample.notices;
      }
      for (const auto& [index, sample_notices] : notices) ledger.mark_used(index, records[index].id, sample_notices);
      std::ranges::sort(all_keys);
      result.next.push_back(batch.next);
    }
  } catch (const UserError& error) {
    result.error = error.what();
  }
  result.ledger = ledger.to_json();
  result.num_made = processor.calls();
  return result;
}

std::vector<RankBatches> draw_ranks(int64_t world_size, const std::function<void(int64_t)>& fault = {},
                                    BadSamplePolicy policy = BadSamplePolicy::kSkip) {
  ThreadGather gather(world_size);
  std::vector<RankBatches> batches_by_rank(static_cast<size_t>(world_size));
  {
    std::vector<std::jthread> ranks;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      ranks.emplace_back([&, rank] {
        batches_by_rank[static_cast<size_t>(rank)] = draw_rank(rank, world_size, gather, fault, policy);
      });
    }
  }
  return batches_by_rank;
}

void expect_same_batches(const std::vector<RankBatches>& ranks, const RankBatches& single_rank) {
  for (const RankBatches& rank : ranks) {
    EXPECT_EQ(rank.all_keys, single_rank.all_keys);
    EXPECT_EQ(rank.next, single_rank.next);
    EXPECT_EQ(rank.ledger, single_rank.ledger);
  }
  for (size_t batch = 0; batch < single_rank.all_keys.size(); ++batch) {
    std::vector<Key> combined;
    for (const RankBatches& rank : ranks) {
      combined.insert(combined.end(), rank.own_keys.at(batch).begin(), rank.own_keys.at(batch).end());
    }
    std::ranges::sort(combined);
    EXPECT_EQ(combined, single_rank.all_keys[batch]) << "each sample is made by one of them, batch " << batch;
  }
}

TEST(LoaderRanksTest, DrawTheBatchesOfOneRank) {
  const auto single_rank = draw_ranks(1).front();
  EXPECT_EQ(single_rank.ledger["notices"].size(), 11U) << "of samples 0, 7, … 63, each counted once";
  EXPECT_EQ(single_rank.ledger["notices"][0]["samples"], 10);
  for (const int64_t world_size : {2, 3, 4}) {
    const auto ranks = draw_ranks(world_size);
    expect_same_batches(ranks, single_rank);
    for (const RankBatches& rank : ranks) {
      for (const auto& own_keys : rank.own_keys) EXPECT_EQ(std::ssize(own_keys), kGlobalBatch / world_size);
      // Two batches are made ahead.
      EXPECT_LE(rank.num_made, (kNumBatches + 3) * kGlobalBatch / world_size);
    }
  }
}

TEST(LoaderRanksTest, BadSampleOfOneRankIsReplacedByAll) {
  const CapturedLog log;
  const auto reject_some = [](int64_t index) {
    sleep_briefly(index);
    if (index % 6 == 1) throw_too_long(index);
  };
  const auto single_rank = draw_ranks(1, reject_some).front();
  EXPECT_GT(single_rank.ledger["dropped"], 10);
  for (const int64_t world_size : {2, 3}) expect_same_batches(draw_ranks(world_size, reject_some), single_rank);
}

TEST(LoaderRanksTest, BadSampleOfOneRankStopsAllWithTheSameError) {
  const CapturedLog log;
  const auto ranks = draw_ranks(
      3,
      [](int64_t index) {
        if (index == 33) throw_too_long(index);
      },
      BadSamplePolicy::kFail);
  EXPECT_THAT(ranks[0].error, HasSubstr("s33"));
  for (const RankBatches& rank : ranks) {
    EXPECT_EQ(rank.error, ranks[0].error);
    EXPECT_EQ(rank.ledger["failed"], 1);
  }
}

TEST(LoaderRanksTest, AllStopWithoutAUsableSample) {
  const CapturedLog log;
  for (const RankBatches& rank : draw_ranks(2, [](int64_t index) { throw_too_long(index); })) {
    EXPECT_THAT(rank.error, HasSubstr("none of the"));
  }
}

}  // namespace
}  // namespace vlmtrain::data
