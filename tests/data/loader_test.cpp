#include "vlmtrain/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <set>
#include <utility>

#include "base/captured_log.h"
#include "data/fake_processor.h"

namespace vlmtrain::data {
namespace {

using testing::HasSubstr;

std::vector<int64_t> indices(const GlobalBatch& batch) {
  std::vector<int64_t> result;
  for (const Sample& sample : batch.samples) result.push_back(sample.index);
  return result;
}

void expect_sum(const Ledger& ledger) {
  const auto json = ledger.to_json();
  EXPECT_EQ(json["used"].get<int64_t>() + json["dropped"].get<int64_t>() + json["failed"].get<int64_t>() +
                json["not_reached"].get<int64_t>(),
            ledger.samples());
}

/// As a run that trains on what it draws.
void mark_used(Ledger& ledger, const GlobalBatch& batch) {
  for (const Sample& sample : batch.samples) ledger.mark_used(sample.index);
}

struct Drawn {
  std::vector<uint64_t> seeds;  ///< of the samples
  std::vector<std::vector<int64_t>> batches;
  std::vector<Cursor> cursors;
};

Drawn draw(Loader& loader, int64_t batches, Ledger* ledger = nullptr) {
  Drawn drawn;
  for (int64_t i = 0; i < batches; ++i) {
    const GlobalBatch batch = loader.next();
    if (ledger != nullptr) mark_used(*ledger, batch);
    for (const Sample& sample : batch.samples) {
      EXPECT_EQ(sample.task, std::to_string(sample.seed)) << "made with the seed that it has";
      drawn.seeds.push_back(sample.seed);
    }
    drawn.batches.push_back(indices(batch));
    drawn.cursors.push_back(batch.next);
  }
  return drawn;
}

void reject_every_fourth(int64_t index) {
  stagger(index);
  if (index % 4 == 0) reject(index);
}

template <class Error = UserError>
std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Loader, TheOrderDoesNotDependOnTheThreads) {
  const auto records = make_records(23);
  const FakeProcessor processor(reject_every_fourth);
  const CapturedLog log;
  std::vector<std::vector<int64_t>> expected;
  for (const int64_t workers : {1, 2, 4}) {
    for (const int64_t ahead : {0, 1, 50}) {
      Ledger ledger("train.json", 23);
      OneLaneLoader loader(records, processor,
                           {.global_batch_size = 5,
                            .num_workers = workers,
                            .samples_ahead = ahead,
                            .on_bad_sample = BadSamplePolicy::kSkip},
                           3, {}, ledger);
      const auto batches = draw(loader, 12).batches;
      if (expected.empty()) expected = batches;
      EXPECT_EQ(batches, expected) << workers << " workers, " << ahead << " ahead";
    }
  }
}

TEST(Loader, SaysOnceThatItHoldsSamplesBack) {
  const auto records = make_records(23);
  const FakeProcessor processor;
  Drawn unbounded;
  for (const int64_t bytes : {0, 1}) {
    Ledger ledger("train.json", 23);
    const CapturedLog log;
    OneLaneLoader loader(records, processor, {.global_batch_size = 5, .num_workers = 2, .bytes_ahead = bytes}, 3, {},
                         ledger);
    const Drawn drawn = draw(loader, 12);
    if (bytes == 0) unbounded = drawn;
    EXPECT_EQ(drawn.batches, unbounded.batches);
    EXPECT_EQ(log.lines(), bytes == 0 ? 0 : 1);
    if (bytes > 0) {
      EXPECT_THAT(log.text(), HasSubstr("decoded samples wait in 1 B of host memory"));
    }
  }
}

TEST(Loader, BatchesAreExactAcrossEpochs) {
  const auto records = make_records(7);
  const FakeProcessor processor;
  Ledger ledger("train.json", 7);
  OneLaneLoader loader(records, processor, {.global_batch_size = 5, .num_workers = 2}, 11, {}, ledger);
  std::vector<int64_t> drawn;
  for (int64_t step = 1; step <= 7; ++step) {
    const GlobalBatch batch = loader.next();
    ASSERT_EQ(batch.samples.size(), 5U);
    EXPECT_EQ(batch.label_tokens, 5);
    EXPECT_GE(batch.wait_seconds, 0);
    EXPECT_EQ(batch.next.lanes[0], (Place{step * 5 / 7, step * 5 % 7}));
    for (const int64_t index : indices(batch)) drawn.push_back(index);
  }
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    EXPECT_EQ(std::vector(drawn.begin() + epoch * 7, drawn.begin() + (epoch + 1) * 7), epoch_order(7, 11, epoch));
  }
}

TEST(Loader, ASampleHasANewSeedEachTimeItIsDrawn) {
  const auto records = make_records(7);
  const FakeProcessor processor;
  const auto seeds = [&](uint64_t seed, int64_t batch_size) {
    Ledger ledger("train.json", 7);
    OneLaneLoader loader(records, processor, {.global_batch_size = batch_size, .num_workers = 2}, seed, {}, ledger);
    return draw(loader, 30 / batch_size).seeds;
  };
  const auto drawn = seeds(11, 5);
  EXPECT_EQ(std::set(drawn.begin(), drawn.end()).size(), 30U);
  EXPECT_EQ(seeds(11, 10), drawn);
  EXPECT_NE(seeds(12, 5).front(), drawn.front());
}

TEST(Loader, ABatchMayHoldMoreThanAnEpoch) {
  const auto records = make_records(2);
  const FakeProcessor processor;
  Ledger ledger("train.json", 2);
  OneLaneLoader loader(records, processor, {.global_batch_size = 5, .num_workers = 2}, 0, {}, ledger);
  EXPECT_EQ(loader.next().samples.size(), 5U);
  EXPECT_EQ(loader.next().next.lanes[0], (Place{5, 0}));
}

TEST(Loader, ResumesWithTheSameBatchesAndLedger) {
  const auto records = make_records(23);
  const FakeProcessor processor(reject_every_fourth);
  const LoaderSettings settings{.global_batch_size = 5, .num_workers = 3, .on_bad_sample = BadSamplePolicy::kSkip};
  const CapturedLog log;
  for (int64_t stop = 1; stop < 10; ++stop) {
    Ledger ledger("train.json", 23);
    OneLaneLoader loader(records, processor, settings, 3, {}, ledger);
    const Cursor cursor = draw(loader, stop, &ledger).cursors.back();
    Ledger restored = Ledger::restore(ledger.to_json(), "train.json", DrawOrder(23, 3), cursor);
    EXPECT_EQ(restored.to_json(), ledger.to_json());
    OneLaneLoader resumed(records, processor, settings, 3, cursor, restored);
    const Drawn expected = draw(loader, 6, &ledger);
    const Drawn actual = draw(resumed, 6, &restored);
    EXPECT_EQ(actual.batches, expected.batches) << "stopped after " << stop;
    EXPECT_EQ(actual.cursors, expected.cursors);
    EXPECT_EQ(actual.seeds, expected.seeds);
    EXPECT_EQ(restored.to_json(), ledger.to_json());
    expect_sum(restored);
  }
}

TEST(Loader, SkipsUnusableRecordsAndWarnsOfEachOnce) {
  auto records = make_records(6);
  records[2].problem = "no turns";
  records[4].task = "unlabelled";
  const FakeProcessor processor;
  Ledger ledger("train.json", 6);
  const CapturedLog log;
  OneLaneLoader loader(records, processor,
                       {.global_batch_size = 4, .num_workers = 2, .on_bad_sample = BadSamplePolicy::kSkip}, 0, {},
                       ledger);
  for (int64_t step = 0; step < 5; ++step) {
    const GlobalBatch batch = loader.next();
    mark_used(ledger, batch);
    for (const int64_t index : indices(batch)) EXPECT_TRUE(index != 2 && index != 4) << index;
  }
  EXPECT_EQ(log.lines(), 2);
  EXPECT_THAT(log.text(), HasSubstr("warning: dropped: sample s2 (line 3): no turns"));
  EXPECT_THAT(log.text(), HasSubstr("sample s4 (line 5) has no label token"));
  const auto json = ledger.to_json();
  EXPECT_EQ(json["used"], 4);
  EXPECT_EQ(json["reasons"].dump(), R"({"no label tokens":1,"unusable record":1})");
}

TEST(Loader, DropsASampleThatIsToBeDroppedWhateverThePolicy) {
  const auto records = make_records(8);
  const int64_t bad = epoch_order(8, 5, 0)[1];
  const FakeProcessor processor([bad](int64_t index) {
    if (index == bad) throw TooLong(9000, "it has 9000 tokens", /*is_dropped=*/true);
  });
  Ledger ledger("train.json", 8);
  OneLaneLoader loader(records, processor, {.global_batch_size = 7, .on_bad_sample = BadSamplePolicy::kFail}, 5, {},
                       ledger);
  EXPECT_EQ(loader.next().samples.size(), 7);
  EXPECT_EQ(ledger.status(bad), SampleStatus::kDropped);
}

TEST(Loader, StopsAtABadSample) {
  const auto records = make_records(8);
  const int64_t bad = epoch_order(8, 5, 0)[5];
  const FakeProcessor processor([bad](int64_t index) {
    if (index == bad) reject(index);
  });
  Ledger ledger("train.json", 8);
  OneLaneLoader loader(records, processor, {.global_batch_size = 4, .num_workers = 2}, 5, {}, ledger);
  mark_used(ledger, loader.next());
  EXPECT_THAT(error_of([&] { loader.next(); }), HasSubstr("is too long; raise data.max_length"));
  EXPECT_EQ(ledger.status(bad), SampleStatus::kFailed);
  EXPECT_EQ(ledger.count(SampleStatus::kUsed), 4);
  EXPECT_EQ(ledger.count(SampleStatus::kNotReached), 3);
  EXPECT_EQ(ledger.to_json()["reasons"]["too long"], 1);
}

TEST(Loader, ARunOfAnOlderVersionIsToldHowItsSamplesWereRead) {
  io::RecordList records = make_records(4);
  records[2].problem = "weight of a turn is 0, which is not supported; list it in data.ignore_keys to pass over it";
  const FakeProcessor processor;
  const auto error_of = [&](bool read_otherwise) -> std::string {
    Ledger ledger("train.json", 4);
    OneLaneLoader loader(records, processor, {.global_batch_size = 4, .read_otherwise = read_otherwise}, 1, {}, ledger);
    try {
      loader.next();
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of(true), testing::AllOf(HasSubstr("data.on_bad_sample=skip"), HasSubstr("begun by a version")));
  EXPECT_THAT(error_of(false), testing::Not(HasSubstr("begun by a version")));
  records[2].problem = "no turns";
  EXPECT_THAT(error_of(true), testing::Not(HasSubstr("begun by a version"))) << "it was bad before";
}

TEST(Loader, ASampleThatWasDroppedStaysDroppedAndTheNextOneTakesItsPlace) {
  const auto records = make_records(10);
  std::atomic<int64_t> attempts{0};
  const FakeProcessor processor([&](int64_t index) {
    if (index == 4 && attempts++ == 0) reject(index);  // its file is mended while the run goes on
  });
  Ledger ledger("train.json", 10);
  const CapturedLog log;
  OneLaneLoader loader(records, processor,
                       {.global_batch_size = 4, .num_workers = 2, .on_bad_sample = BadSamplePolicy::kSkip}, 5, {},
                       ledger);
  std::vector<int64_t> wanted;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    for (const int64_t index : epoch_order(10, 5, epoch)) {
      if (index != 4) wanted.push_back(index);
    }
  }
  std::vector<int64_t> drawn;
  for (int64_t step = 0; step < 11; ++step) {
    const GlobalBatch batch = loader.next();
    ASSERT_EQ(batch.samples.size(), 4U);
    for (const int64_t index : indices(batch)) drawn.push_back(index);
  }
  wanted.resize(drawn.size());
  EXPECT_EQ(drawn, wanted);
  EXPECT_EQ(log.lines(), 1);
}

TEST(Loader, WhatTheLedgerHasAsDroppedIsNotEvenRead) {
  const auto records = make_records(7);
  const FakeProcessor processor([](int64_t index) {
    if (index == 2 || index == 5) throw InternalError("read all the same");
  });
  Ledger ledger("train.json", 7);
  for (const int64_t index : {2, 5}) ledger.mark_dropped(index, "s", "too long", "is too long");
  OneLaneLoader loader(records, processor, {.global_batch_size = 5, .num_workers = 2}, 0, {}, ledger);
  std::vector<int64_t> drawn;
  for (int64_t step = 0; step < 6; ++step) std::ranges::copy(indices(loader.next()), std::back_inserter(drawn));
  std::ranges::sort(drawn);
  std::vector<int64_t> wanted;
  for (const int64_t index : {0, 1, 3, 4, 6}) wanted.insert(wanted.end(), 6, index);
  EXPECT_EQ(drawn, wanted);
}

TEST(Loader, ALostSampleIsReplacedByTheNextOneWhoeverHasDrawnItAlready) {
  const auto records = make_records(23);
  const FakeProcessor processor(reject_every_fourth);
  const LoaderSettings settings{.global_batch_size = 4, .num_workers = 3, .on_bad_sample = BadSamplePolicy::kSkip};
  const CapturedLog log;
  // The seed is the place's.
  const auto key = [](const Sample& sample) { return std::pair(sample.index, sample.seed); };
  const auto keys = [&](const GlobalBatch& batch) {
    std::vector<std::pair<int64_t, uint64_t>> found;
    for (const Sample& sample : batch.samples) found.push_back(key(sample));
    return found;
  };
  Ledger once("train.json", 23);
  OneLaneLoader alone(records, processor, settings, 3, {}, once);
  std::vector<Sample> stream;
  for (int64_t step = 0; step < 12; ++step) {
    auto batch = alone.next();
    std::ranges::move(batch.samples, std::back_inserter(stream));
  }
  for (const size_t ahead : {0U, 1U, 2U}) {
    Ledger ledger("train.json", 23);
    OneLaneLoader loader(records, processor, settings, 3, {}, ledger);
    GlobalBatch step = loader.next();
    std::vector<GlobalBatch> later;
    for (size_t i = 0; i < ahead; ++i) later.push_back(loader.next());
    const int64_t lost = step.samples[1].index;
    ledger.mark_dropped(lost, "s", "does not fit into memory", "is too large");
    for (; !later.empty(); later.pop_back()) loader.put_back(std::move(later.back()));
    step.samples.erase(step.samples.begin() + 1);
    loader.fill(step);

    std::vector<std::pair<int64_t, uint64_t>> wanted, drawn;
    for (const Sample& sample : stream) {
      if (sample.index != lost) wanted.push_back(key(sample));
    }
    Cursor next = step.next;
    EXPECT_EQ(step.label_tokens, 4);
    EXPECT_EQ(next.lanes[0], step.units.back().behind);
    for (const auto& sample : keys(step)) drawn.push_back(sample);
    // A run that is resumed behind this step goes on with the same samples.
    Ledger restored = Ledger::restore(ledger.to_json(), "train.json", DrawOrder(23, 3), next);
    OneLaneLoader resumed(records, processor, settings, 3, next, restored);
    for (int64_t i = 0; i < 8; ++i) {
      const GlobalBatch batch = loader.next();
      EXPECT_EQ(keys(resumed.next()), keys(batch)) << i;
      for (const auto& sample : keys(batch)) drawn.push_back(sample);
    }
    wanted.resize(drawn.size());
    EXPECT_EQ(drawn, wanted) << ahead << " drawn ahead";
  }
}

TEST(Loader, ErrorsThatAreNotTheSamplesFaultAreNeverSkipped) {
  const auto records = make_records(3);
  const auto throws = [&](auto error) {
    const CapturedLog log;
    const FakeProcessor processor([error](int64_t) { throw error; });
    Ledger ledger("train.json", 3);
    OneLaneLoader loader(records, processor, {.on_bad_sample = BadSamplePolicy::kSkip}, 0, {}, ledger);
    EXPECT_THROW(loader.next(), decltype(error));
    EXPECT_EQ(ledger.count(SampleStatus::kFailed), 1);
    EXPECT_THAT(log.text(), HasSubstr("error: train.json: sample s"));
    expect_sum(ledger);
  };
  throws(std::bad_alloc());
  throws(InternalError("a bug"));
  throws(usage_error("a wrong option"));
  throws(42);
}

TEST(Loader, BadDataOfAnyKindIsSkipped) {
  const auto records = make_records(3);
  const FakeProcessor processor([](int64_t index) {
    if (index == 1) throw data_error("no image; put it there");
  });
  Ledger ledger("train.json", 3);
  const CapturedLog log;
  OneLaneLoader loader(records, processor, {.global_batch_size = 3, .on_bad_sample = BadSamplePolicy::kSkip}, 0, {},
                       ledger);
  loader.next();
  EXPECT_EQ(ledger.to_json()["reasons"].dump(), R"({"bad data":1})");
}

TEST(Loader, AnEpochWithoutAUsableSampleIsAnError) {
  auto records = make_records(4);
  const FakeProcessor processor(reject);
  const CapturedLog log;
  for (const Cursor& start : {cursor_at(0, 0), cursor_at(0, 2), cursor_at(3, 3)}) {
    Ledger ledger("train.json", 4);
    OneLaneLoader loader(records, processor, {.on_bad_sample = BadSamplePolicy::kSkip}, 0, start, ledger);
    EXPECT_THAT(error_of([&] { loader.next(); }), HasSubstr("none of the 4 samples can be used"));
    EXPECT_EQ(ledger.count(SampleStatus::kDropped), 4);
  }
}

TEST(Loader, ManyBadSamplesDoNotFloodTheLog) {
  const auto records = make_records(100);
  const FakeProcessor processor([](int64_t index) {
    if (index % 2 == 0) reject(index);
  });
  Ledger ledger("train.json", 100);
  const CapturedLog log;
  {
    OneLaneLoader loader(records, processor,
                         {.global_batch_size = 50, .num_workers = 2, .on_bad_sample = BadSamplePolicy::kSkip}, 0, {},
                         ledger);
    for (int64_t step = 0; step < 4; ++step) loader.next();
  }
  EXPECT_EQ(log.lines(), 21);
  EXPECT_THAT(log.text(), HasSubstr("30 more samples are dropped, 50 of 100 in all"));
}

TEST(Loader, RefusesAnEmptyDataSetAndAForeignCursor) {
  const FakeProcessor processor;
  Ledger none("train.json", 0);
  EXPECT_THAT(error_of([&] { OneLaneLoader(make_records(0), processor, {}, 0, {}, none); }),
              HasSubstr("holds no samples"));
  Ledger three("train.json", 3);
  EXPECT_THAT(error_of([&] { OneLaneLoader(make_records(3), processor, {}, 0, cursor_at(0, 3), three); }),
              HasSubstr("file holds 3"));
}

TEST(Loader, StopsWhileThreadsAreBusy) {
  const auto records = make_records(40);
  const FakeProcessor processor(stagger);
  for (int64_t repetition = 0; repetition < 200; ++repetition) {
    Ledger ledger("train.json", 40);
    OneLaneLoader loader(records, processor, {.global_batch_size = 3, .num_workers = 1 + repetition % 4},
                         static_cast<uint64_t>(repetition), {}, ledger);
    for (int64_t step = 0; step < repetition % 3; ++step) mark_used(ledger, loader.next());
    EXPECT_EQ(ledger.count(SampleStatus::kUsed), repetition % 3 * 3);
  }
}

}  // namespace
}  // namespace vlmtrain::data
