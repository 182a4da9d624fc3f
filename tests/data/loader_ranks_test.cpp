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
#include "vlmtrain/data/loader.h"

namespace vlmtrain::data {
namespace {

using testing::HasSubstr;

constexpr int64_t kSamplesOfRanks = 70;
constexpr int64_t kGlobalBatch = 12;
constexpr int64_t kBatches = 20;

/// Where threads that stand for processes tell each other something.
class Exchange {
 public:
  explicit Exchange(int64_t world_size) : barrier_(world_size), words_(static_cast<size_t>(world_size)) {}

  std::vector<std::string> each(int64_t rank, const std::string& own) {
    words_[static_cast<size_t>(rank)] = own;
    barrier_.arrive_and_wait();
    auto all = words_;
    barrier_.arrive_and_wait();
    return all;
  }

 private:
  std::barrier<> barrier_;
  std::vector<std::string> words_;
};

Lane lane_between(std::string name, int64_t begin, int64_t end) {
  Lane lane{.name = std::move(name), .samples = std::vector<int64_t>(static_cast<size_t>(end - begin))};
  std::iota(lane.samples.begin(), lane.samples.end(), begin);
  return lane;
}

/// Two sources, drawn 2 : 1.
DrawOrder two_lanes() {
  return {{lane_between("a", 0, 50), lane_between("b", 50, kSamplesOfRanks)},
          {{.from_batch = 0, .shares = {2, 1}}},
          {.seed = 5},
          kSamplesOfRanks,
          {},
          {}};
}

/// A sample of a batch, by its index and seed.
using Key = std::pair<int64_t, uint64_t>;

struct DrawnByRank {
  std::vector<std::vector<Key>> own, all;  // of each batch; all ascending
  std::vector<Cursor> next;
  nlohmann::ordered_json ledger;
  int64_t made = 0;
  std::string error;
};

DrawnByRank draw_as(int64_t rank, int64_t world_size, Exchange& exchange, const std::function<void(int64_t)>& trouble,
                    BadSamplePolicy policy) {
  io::RecordList records = make_records(kSamplesOfRanks);
  for (int64_t i = 0; i < kSamplesOfRanks; i += 7)
    records[i].notices = {{"a kind", ""}, {fmt::format("kind {}", i), "x"}};
  const FakeProcessor processor(trouble);
  const DrawOrder order = two_lanes();
  Ledger ledger("train.json", kSamplesOfRanks);
  DrawnByRank drawn;
  Loader loader(records, processor, order,
                {.global_batch_size = kGlobalBatch,
                 .num_workers = 2,
                 .on_bad_sample = policy,
                 .share = {.rank = rank,
                           .world_size = world_size,
                           .each = [&, rank](const std::string& own) { return exchange.each(rank, own); }}},
                {}, ledger);
  try {
    for (int64_t i = 0; i < kBatches; ++i) {
      const GlobalBatch batch = loader.next();
      std::map<int64_t, std::vector<io::Notice>> notices;
      auto& own = drawn.own.emplace_back();
      for (const Sample& sample : batch.samples) {
        EXPECT_EQ(sample.token_ids.at(1), 100 + sample.index);
        own.emplace_back(sample.index, sample.seed);
        notices[sample.index] = sample.notices;
      }
      auto& all = drawn.all.emplace_back(own);
      for (const auto& sample : batch.elsewhere) {
        all.emplace_back(sample.index, sample.seed);
        notices[sample.index] = sample.notices;
      }
      for (const auto& [index, own_notices] : notices) ledger.mark_used(index, records[index].id, own_notices);
      std::ranges::sort(all);
      drawn.next.push_back(batch.next);
    }
  } catch (const UserError& error) {
    drawn.error = error.what();
  }
  drawn.ledger = ledger.to_json();
  drawn.made = processor.calls();
  return drawn;
}

std::vector<DrawnByRank> draw_by(int64_t world_size, const std::function<void(int64_t)>& trouble = {},
                                 BadSamplePolicy policy = BadSamplePolicy::kSkip) {
  Exchange exchange(world_size);
  std::vector<DrawnByRank> drawn(static_cast<size_t>(world_size));
  {
    std::vector<std::jthread> ranks;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      ranks.emplace_back(
          [&, rank] { drawn[static_cast<size_t>(rank)] = draw_as(rank, world_size, exchange, trouble, policy); });
    }
  }
  return drawn;
}

void expect_the_batches_of_one(const std::vector<DrawnByRank>& ranks, const DrawnByRank& alone) {
  for (const DrawnByRank& rank : ranks) {
    EXPECT_EQ(rank.all, alone.all);
    EXPECT_EQ(rank.next, alone.next);
    EXPECT_EQ(rank.ledger, alone.ledger);
  }
  for (size_t batch = 0; batch < alone.all.size(); ++batch) {
    std::vector<Key> together;
    for (const DrawnByRank& rank : ranks) {
      together.insert(together.end(), rank.own.at(batch).begin(), rank.own.at(batch).end());
    }
    std::ranges::sort(together);
    EXPECT_EQ(together, alone.all[batch]) << "each sample is made by one of them, batch " << batch;
  }
}

TEST(LoaderRanks, DrawTheBatchesOfOneProcess) {
  const auto alone = draw_by(1).front();
  EXPECT_EQ(alone.ledger["notices"].size(), 11U) << "of samples 0, 7, … 63, each counted once";
  EXPECT_EQ(alone.ledger["notices"][0]["samples"], 10);
  for (const int64_t world_size : {2, 3, 4}) {
    const auto ranks = draw_by(world_size);
    expect_the_batches_of_one(ranks, alone);
    for (const DrawnByRank& rank : ranks) {
      for (const auto& own : rank.own) EXPECT_EQ(std::ssize(own), kGlobalBatch / world_size);
      // Two batches are made ahead.
      EXPECT_LE(rank.made, (kBatches + 3) * kGlobalBatch / world_size);
    }
  }
}

TEST(LoaderRanks, ABadSampleOfOneIsReplacedByAll) {
  const CapturedLog log;
  const auto reject_some = [](int64_t index) {
    stagger(index);
    if (index % 6 == 1) reject(index);
  };
  const auto alone = draw_by(1, reject_some).front();
  EXPECT_GT(alone.ledger["dropped"], 10);
  for (const int64_t world_size : {2, 3}) expect_the_batches_of_one(draw_by(world_size, reject_some), alone);
}

TEST(LoaderRanks, ABadSampleOfOneStopsAllWithTheSameWords) {
  const CapturedLog log;
  const auto ranks = draw_by(
      3,
      [](int64_t index) {
        if (index == 33) reject(index);
      },
      BadSamplePolicy::kFail);
  EXPECT_THAT(ranks[0].error, HasSubstr("s33"));
  for (const DrawnByRank& rank : ranks) {
    EXPECT_EQ(rank.error, ranks[0].error);
    EXPECT_EQ(rank.ledger["failed"], 1);
  }
}

TEST(LoaderRanks, WithoutAUsableSampleAllStop) {
  const CapturedLog log;
  for (const DrawnByRank& rank : draw_by(2, [](int64_t index) { reject(index); })) {
    EXPECT_THAT(rank.error, HasSubstr("none of the"));
  }
}

}  // namespace
}  // namespace vlmtrain::data
