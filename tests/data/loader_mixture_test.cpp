#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "base/captured_log.h"
#include "data/fake_processor.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/loader/loader.h"

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;

constexpr int64_t kMixtureSamples = 90;

MixtureSource make_source(std::string name, int64_t begin, int64_t end) {
  MixtureSource source{.name = std::move(name), .samples = std::vector<int64_t>(static_cast<size_t>(end - begin))};
  std::iota(source.samples.begin(), source.samples.end(), begin);
  return source;
}

/// Three sources of very different sizes with shares of 2 : 1 : 1.
SampleOrder make_three_sources(uint64_t seed) {
  return {{make_source("a", 0, 60), make_source("b", 60, 83), make_source("c", 83, kMixtureSamples)},
          {{.first_batch = 0, .shares = {2, 1, 1}}},
          {.seed = seed},
          kMixtureSamples,
          {},
          {}};
}

std::vector<int64_t> count_by_source(const SampleOrder& order, const GlobalBatch& batch) {
  std::vector<int64_t> counts(static_cast<size_t>(order.num_sources()));
  for (const Sample& sample : batch.samples) ++counts[static_cast<size_t>(order.find_sample_source(sample.index))];
  return counts;
}

using Keys = std::vector<std::pair<int64_t, uint64_t>>;

Keys get_keys(const GlobalBatch& batch) {
  Keys keys;
  for (const Sample& sample : batch.samples) keys.emplace_back(sample.index, sample.seed);
  return keys;
}

void reject_some(int64_t index) {
  sleep_briefly(index);
  if (index % 5 == 3) throw_too_long(index);
}

class LoaderMixtureTest : public testing::Test {
 protected:
  const io::InMemoryRecords records_ = make_records(kMixtureSamples);
  const SampleOrder order_ = make_three_sources(7);
  const CapturedLog log_;
};

TEST_F(LoaderMixtureTest, KeepsSharesInEachStepWithDroppedSamples) {
  const FakeProcessor processor(reject_some);
  Ledger ledger("train", kMixtureSamples);
  Loader loader(records_, processor, order_,
                {.global_batch_size = 8, .num_workers = 3, .on_bad_sample = BadSamplePolicy::kSkip}, {}, ledger);
  std::map<int64_t, int64_t> draw_counts;
  for (int64_t step = 0; step < 200; ++step) {
    const GlobalBatch batch = loader.next();
    ASSERT_THAT(count_by_source(order_, batch), ElementsAre(4, 2, 2)) << step;
    for (const Sample& sample : batch.samples) ++draw_counts[sample.index];
  }
  const auto count_draws = [&](int64_t begin, int64_t end) {
    std::set<int64_t> draws;
    for (int64_t index = begin; index < end; ++index) {
      if (index % 5 != 3) draws.insert(draw_counts[index]);
    }
    return draws;
  };
  for (const auto& [begin, end] : {std::pair{0, 60}, {60, 83}, {83, 90}}) {
    const auto draws = count_draws(begin, end);
    EXPECT_LE(*draws.rbegin() - *draws.begin(), 1) << "a source goes through all of its samples, then begins again";
  }
}

TEST_F(LoaderMixtureTest, StaysWithinOneSampleOfItsSharesWithOddBatches) {
  const FakeProcessor processor;
  Ledger ledger("train", kMixtureSamples);
  Loader loader(records_, processor, order_, {.global_batch_size = 5, .num_workers = 2}, {}, ledger);
  std::vector<int64_t> total(3);
  for (int64_t step = 1; step <= 1000; ++step) {
    const auto counts = count_by_source(order_, loader.next());
    for (size_t source = 0; source < 3; ++source) {
      total[source] += counts[source];
      const double expected_count = static_cast<double>(5 * step) * (source == 0 ? 0.5 : 0.25);
      ASSERT_LT(std::abs(static_cast<double>(total[source]) - expected_count), 1.0)
          << "step " << step << ", lane " << source;
    }
  }
}

TEST_F(LoaderMixtureTest, BatchesDoNotDependOnThreadsAndResumeAtAnyStep) {
  const FakeProcessor processor(reject_some);
  const auto settings = [](int64_t workers) {
    return LoaderSettings{.global_batch_size = 7, .num_workers = workers, .on_bad_sample = BadSamplePolicy::kSkip};
  };
  std::vector<Keys> expected;
  std::vector<Cursor> cursors;
  std::vector<nlohmann::ordered_json> ledgers;
  Ledger reference_ledger("train", kMixtureSamples);
  Loader reference_loader(records_, processor, order_, settings(1), {}, reference_ledger);
  for (int64_t step = 0; step < 40; ++step) {
    const GlobalBatch batch = reference_loader.next();
    for (const Sample& sample : batch.samples) reference_ledger.mark_used(sample.index);
    expected.push_back(get_keys(batch));
    cursors.push_back(batch.next);
    ledgers.push_back(reference_ledger.to_json());
  }
  for (const int64_t workers : {2, 4}) {
    Ledger ledger("train", kMixtureSamples);
    Loader loader(records_, processor, order_, settings(workers), {}, ledger);
    for (const Keys& keys : expected) ASSERT_EQ(get_keys(loader.next()), keys) << workers << " workers";
  }
  for (size_t step = 0; step + 1 < expected.size(); step += 3) {
    Ledger ledger = Ledger::restore(ledgers[step], "train", order_, cursors[step]);
    EXPECT_EQ(ledger.to_json(), ledgers[step]);
    Loader resumed(records_, processor, order_, settings(3), cursors[step], ledger);
    for (size_t next = step + 1; next < std::min(step + 6, expected.size()); ++next) {
      ASSERT_EQ(get_keys(resumed.next()), expected[next]) << "from step " << step;
    }
  }
}

TEST_F(LoaderMixtureTest, ReplacesALostSampleByOneOfItsSource) {
  const FakeProcessor processor;
  Ledger ledger("train", kMixtureSamples);
  Loader loader(records_, processor, order_,
                {.global_batch_size = 8, .num_workers = 2, .on_bad_sample = BadSamplePolicy::kSkip}, {}, ledger);
  GlobalBatch step = loader.next();
  std::vector<GlobalBatch> later;
  for (int i = 0; i < 2; ++i) later.push_back(loader.next());
  const auto next_before = get_keys(later[0]);
  const auto lost_sample =
      std::ranges::find_if(step.samples, [&](const Sample& s) { return order_.find_sample_source(s.index) == 2; });
  ledger.mark_dropped(lost_sample->index, "s", "does not fit into memory", "is too large");
  for (; !later.empty(); later.pop_back()) loader.put_back(std::move(later.back()));
  step.samples.erase(lost_sample);
  loader.refill(step);
  EXPECT_THAT(count_by_source(order_, step), ElementsAre(4, 2, 2));
  for (int i = 0; i < 20; ++i) EXPECT_THAT(count_by_source(order_, loader.next()), ElementsAre(4, 2, 2)) << i;
}

TEST_F(LoaderMixtureTest, BatchesHoldWholePacks) {
  std::vector<SampleSize> sizes(kMixtureSamples);
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = {.tokens = static_cast<int64_t>(i % 7) + 1};
  const SampleOrder order({make_source("", 0, kMixtureSamples)}, {{.first_batch = 0, .shares = {1}}},
                          {.seed = 2, .pack_limits = PackLimits{.max_tokens = 10}}, kMixtureSamples, sizes, {});
  const FakeProcessor processor;
  Ledger ledger("train", kMixtureSamples);
  Loader loader(records_, processor, order, {.global_batch_size = 4, .num_workers = 3}, {}, ledger);
  EpochProgress progress(ledger, order);
  std::vector<int64_t> drawn_samples;
  for (int64_t step = 0; step < 9; ++step) {
    const GlobalBatch batch = loader.next();
    EXPECT_EQ(batch.units.size(), 4U);
    EXPECT_GT(batch.samples.size(), 4U);
    for (const Sample& sample : batch.samples) drawn_samples.push_back(sample.index);
    const auto all = static_cast<double>(drawn_samples.size());
    if (all <= kMixtureSamples) {
      EXPECT_NEAR(progress.at(batch.next), all / kMixtureSamples, 1e-12);
    }
  }
  const auto expected = order.get_epoch_order(0, 0)->samples;
  drawn_samples.resize(std::min(drawn_samples.size(), expected.size()));
  EXPECT_EQ(drawn_samples, std::vector(expected.begin(), expected.begin() + std::ssize(drawn_samples)));
}

}  // namespace
}  // namespace vlmtrain::data
