#include "vlmtrain/data/loader/loader.h"

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

std::vector<int64_t> get_indices(const GlobalBatch& batch) {
  std::vector<int64_t> result;
  for (const Sample& sample : batch.samples) result.push_back(sample.index);
  return result;
}

void expect_complete_counts(const Ledger& ledger) {
  const auto json = ledger.to_json();
  EXPECT_EQ(json["used"].get<int64_t>() + json["dropped"].get<int64_t>() + json["failed"].get<int64_t>() +
                json["not_reached"].get<int64_t>(),
            ledger.num_samples());
}

/// Marks the samples of a batch as used, as a run does after training on it.
void mark_used(Ledger& ledger, const GlobalBatch& batch) {
  for (const Sample& sample : batch.samples) ledger.mark_used(sample.index);
}

struct DrawnBatches {
  std::vector<uint64_t> seeds;  ///< of the samples
  std::vector<std::vector<int64_t>> batches;
  std::vector<Cursor> cursors;
};

DrawnBatches draw(Loader& loader, int64_t batches, Ledger* ledger = nullptr) {
  DrawnBatches result;
  for (int64_t i = 0; i < batches; ++i) {
    const GlobalBatch batch = loader.next();
    if (ledger != nullptr) mark_used(*ledger, batch);
    for (const Sample& sample : batch.samples) {
      EXPECT_EQ(sample.task, std::to_string(sample.seed)) << "processed with its own seed";
      result.seeds.push_back(sample.seed);
    }
    result.batches.push_back(get_indices(batch));
    result.cursors.push_back(batch.next);
  }
  return result;
}

void reject_every_fourth(int64_t index) {
  sleep_briefly(index);
  if (index % 4 == 0) throw_too_long(index);
}

template <class Error = UserError>
std::string get_error(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Loader, OrderDoesNotDependOnThreads) {
  const auto records = make_records(23);
  const FakeProcessor processor(reject_every_fourth);
  const CapturedLog log;
  std::vector<std::vector<int64_t>> expected;
  for (const int64_t workers : {1, 2, 4}) {
    for (const int64_t ahead : {0, 1, 50}) {
      Ledger ledger("train.json", 23);
      SingleSourceLoader loader(records, processor,
                                {.global_batch_size = 5,
                                 .num_workers = workers,
                                 .max_prefetch_samples = ahead,
                                 .on_bad_sample = BadSamplePolicy::kSkip},
                                3, {}, ledger);
      const auto batches = draw(loader, 12).batches;
      if (expected.empty()) expected = batches;
      EXPECT_EQ(batches, expected) << workers << " workers, " << ahead << " ahead";
    }
  }
}

TEST(Loader, WarnsOnceIfPrefetchingIsMemoryLimited) {
  const auto records = make_records(23);
  const FakeProcessor processor;
  DrawnBatches unbounded;
  for (const int64_t prefetch_bytes : {0, 1}) {
    Ledger ledger("train.json", 23);
    const CapturedLog log;
    SingleSourceLoader loader(records, processor,
                              {.global_batch_size = 5, .num_workers = 2, .prefetch_bytes = prefetch_bytes}, 3, {},
                              ledger);
    const DrawnBatches limited = draw(loader, 12);
    if (prefetch_bytes == 0) unbounded = limited;
    EXPECT_EQ(limited.batches, unbounded.batches);
    EXPECT_EQ(log.lines(), prefetch_bytes == 0 ? 0 : 1);
    if (prefetch_bytes > 0) {
      EXPECT_THAT(log.text(), HasSubstr("prefetching is limited to 1 B of host memory"));
    }
  }
}

TEST(Loader, BatchesAreExactAcrossEpochs) {
  const auto records = make_records(7);
  const FakeProcessor processor;
  Ledger ledger("train.json", 7);
  SingleSourceLoader loader(records, processor, {.global_batch_size = 5, .num_workers = 2}, 11, {}, ledger);
  std::vector<int64_t> drawn_samples;
  for (int64_t step = 1; step <= 7; ++step) {
    const GlobalBatch batch = loader.next();
    ASSERT_EQ(batch.samples.size(), 5U);
    EXPECT_EQ(batch.label_tokens, 5);
    EXPECT_GE(batch.wait_seconds, 0);
    EXPECT_EQ(batch.next.sources[0], (EpochPosition{step * 5 / 7, step * 5 % 7}));
    for (const int64_t index : get_indices(batch)) drawn_samples.push_back(index);
  }
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    EXPECT_EQ(std::vector(drawn_samples.begin() + epoch * 7, drawn_samples.begin() + (epoch + 1) * 7),
              shuffle_epoch(7, 11, epoch));
  }
}

TEST(Loader, SampleHasANewSeedEachTimeItIsDrawn) {
  const auto records = make_records(7);
  const FakeProcessor processor;
  const auto seeds = [&](uint64_t seed, int64_t batch_size) {
    Ledger ledger("train.json", 7);
    SingleSourceLoader loader(records, processor, {.global_batch_size = batch_size, .num_workers = 2}, seed, {},
                              ledger);
    return draw(loader, 30 / batch_size).seeds;
  };
  const auto first_seeds = seeds(11, 5);
  EXPECT_EQ(std::set(first_seeds.begin(), first_seeds.end()).size(), 30U);
  EXPECT_EQ(seeds(11, 10), first_seeds);
  EXPECT_NE(seeds(12, 5).front(), first_seeds.front());
}

TEST(Loader, BatchMaySpanEpochs) {
  const auto records = make_records(2);
  const FakeProcessor processor;
  Ledger ledger("train.json", 2);
  SingleSourceLoader loader(records, processor, {.global_batch_size = 5, .num_workers = 2}, 0, {}, ledger);
  EXPECT_EQ(loader.next().samples.size(), 5U);
  EXPECT_EQ(loader.next().next.sources[0], (EpochPosition{5, 0}));
}

TEST(Loader, ResumesWithTheSameBatchesAndLedger) {
  const auto records = make_records(23);
  const FakeProcessor processor(reject_every_fourth);
  const LoaderSettings settings{.global_batch_size = 5, .num_workers = 3, .on_bad_sample = BadSamplePolicy::kSkip};
  const CapturedLog log;
  for (int64_t num_batches = 1; num_batches < 10; ++num_batches) {
    Ledger ledger("train.json", 23);
    SingleSourceLoader loader(records, processor, settings, 3, {}, ledger);
    const Cursor cursor = draw(loader, num_batches, &ledger).cursors.back();
    Ledger restored = Ledger::restore(ledger.to_json(), "train.json", SampleOrder(23, 3), cursor);
    EXPECT_EQ(restored.to_json(), ledger.to_json());
    SingleSourceLoader resumed(records, processor, settings, 3, cursor, restored);
    const DrawnBatches expected = draw(loader, 6, &ledger);
    const DrawnBatches actual = draw(resumed, 6, &restored);
    EXPECT_EQ(actual.batches, expected.batches) << "stopped after " << num_batches;
    EXPECT_EQ(actual.cursors, expected.cursors);
    EXPECT_EQ(actual.seeds, expected.seeds);
    EXPECT_EQ(restored.to_json(), ledger.to_json());
    expect_complete_counts(restored);
  }
}

TEST(Loader, SkipsUnusableRecordsAndWarnsOncePerRecord) {
  auto records = make_records(6);
  records[2].problem = "no turns";
  records[4].task = "unlabelled";
  const FakeProcessor processor;
  Ledger ledger("train.json", 6);
  const CapturedLog log;
  SingleSourceLoader loader(records, processor,
                            {.global_batch_size = 4, .num_workers = 2, .on_bad_sample = BadSamplePolicy::kSkip}, 0, {},
                            ledger);
  for (int64_t step = 0; step < 5; ++step) {
    const GlobalBatch batch = loader.next();
    mark_used(ledger, batch);
    for (const int64_t index : get_indices(batch)) EXPECT_TRUE(index != 2 && index != 4) << index;
  }
  EXPECT_EQ(log.lines(), 2);
  EXPECT_THAT(log.text(), HasSubstr("warning: train.json: dropped: sample s2 (line 3): no turns; correct the record"));
  EXPECT_THAT(log.text(), HasSubstr("sample s4 (line 5) has no label token"));
  const auto json = ledger.to_json();
  EXPECT_EQ(json["used"], 4);
  EXPECT_EQ(json["reasons"].dump(), R"({"no label tokens":1,"unusable record":1})");
}

TEST(Loader, DropsSamplesMarkedAsDroppedRegardlessOfPolicy) {
  const auto records = make_records(8);
  const int64_t bad_index = shuffle_epoch(8, 5, 0)[1];
  const FakeProcessor processor([bad_index](int64_t index) {
    if (index == bad_index) throw SampleTooLongError(9000, "it has 9000 tokens", /*is_dropped=*/true);
  });
  Ledger ledger("train.json", 8);
  SingleSourceLoader loader(records, processor, {.global_batch_size = 7, .on_bad_sample = BadSamplePolicy::kFail}, 5,
                            {}, ledger);
  EXPECT_EQ(loader.next().samples.size(), 7);
  EXPECT_EQ(ledger.status(bad_index), SampleStatus::kDropped);
}

TEST(Loader, StopsAtABadSample) {
  const auto records = make_records(8);
  const int64_t bad_index = shuffle_epoch(8, 5, 0)[5];
  const FakeProcessor processor([bad_index](int64_t index) {
    if (index == bad_index) throw_too_long(index);
  });
  Ledger ledger("train.json", 8);
  SingleSourceLoader loader(records, processor, {.global_batch_size = 4, .num_workers = 2}, 5, {}, ledger);
  mark_used(ledger, loader.next());
  EXPECT_THAT(get_error([&] { loader.next(); }), HasSubstr("is too long; raise data.max_length"));
  EXPECT_EQ(ledger.status(bad_index), SampleStatus::kFailed);
  EXPECT_EQ(ledger.count(SampleStatus::kUsed), 4);
  EXPECT_EQ(ledger.count(SampleStatus::kNotReached), 3);
  EXPECT_EQ(ledger.to_json()["reasons"]["too long"], 1);
}

TEST(Loader, DroppedSampleStaysDroppedAndIsReplaced) {
  const auto records = make_records(10);
  std::atomic<int64_t> attempts{0};
  const FakeProcessor processor([&](int64_t index) {
    if (index == 4 && attempts++ == 0) throw_too_long(index);  // its file is fixed during the run
  });
  Ledger ledger("train.json", 10);
  const CapturedLog log;
  SingleSourceLoader loader(records, processor,
                            {.global_batch_size = 4, .num_workers = 2, .on_bad_sample = BadSamplePolicy::kSkip}, 5, {},
                            ledger);
  std::vector<int64_t> expected;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    for (const int64_t index : shuffle_epoch(10, 5, epoch)) {
      if (index != 4) expected.push_back(index);
    }
  }
  std::vector<int64_t> drawn_samples;
  for (int64_t step = 0; step < 11; ++step) {
    const GlobalBatch batch = loader.next();
    ASSERT_EQ(batch.samples.size(), 4U);
    for (const int64_t index : get_indices(batch)) drawn_samples.push_back(index);
  }
  expected.resize(drawn_samples.size());
  EXPECT_EQ(drawn_samples, expected);
  EXPECT_EQ(log.lines(), 1);
}

TEST(Loader, DoesNotReadSamplesDroppedInTheLedger) {
  const auto records = make_records(7);
  const FakeProcessor processor([](int64_t index) {
    if (index == 2 || index == 5) throw InternalError("read all the same");
  });
  Ledger ledger("train.json", 7);
  for (const int64_t index : {2, 5}) ledger.mark_dropped(index, "s", "too long", "is too long");
  SingleSourceLoader loader(records, processor, {.global_batch_size = 5, .num_workers = 2}, 0, {}, ledger);
  std::vector<int64_t> drawn_samples;
  for (int64_t step = 0; step < 6; ++step)
    std::ranges::copy(get_indices(loader.next()), std::back_inserter(drawn_samples));
  std::ranges::sort(drawn_samples);
  std::vector<int64_t> expected;
  for (const int64_t index : {0, 1, 3, 4, 6}) expected.insert(expected.end(), 6, index);
  EXPECT_EQ(drawn_samples, expected);
}

TEST(Loader, RefillTakesTheNextSampleOfTheOrder) {
  const auto records = make_records(23);
  const FakeProcessor processor(reject_every_fourth);
  const LoaderSettings settings{.global_batch_size = 4, .num_workers = 3, .on_bad_sample = BadSamplePolicy::kSkip};
  const CapturedLog log;
  // The seed belongs to the position.
  const auto get_key = [](const Sample& sample) { return std::pair(sample.index, sample.seed); };
  const auto get_keys = [&](const GlobalBatch& batch) {
    std::vector<std::pair<int64_t, uint64_t>> keys;
    for (const Sample& sample : batch.samples) keys.push_back(get_key(sample));
    return keys;
  };
  Ledger reference_ledger("train.json", 23);
  SingleSourceLoader reference_loader(records, processor, settings, 3, {}, reference_ledger);
  std::vector<Sample> stream;
  for (int64_t step = 0; step < 12; ++step) {
    auto batch = reference_loader.next();
    std::ranges::move(batch.samples, std::back_inserter(stream));
  }
  for (const size_t ahead : {0U, 1U, 2U}) {
    Ledger ledger("train.json", 23);
    SingleSourceLoader loader(records, processor, settings, 3, {}, ledger);
    GlobalBatch step = loader.next();
    std::vector<GlobalBatch> later;
    for (size_t i = 0; i < ahead; ++i) later.push_back(loader.next());
    const int64_t dropped_index = step.samples[1].index;
    ledger.mark_dropped(dropped_index, "s", "does not fit into memory", "is too large");
    for (; !later.empty(); later.pop_back()) loader.put_back(std::move(later.back()));
    step.samples.erase(step.samples.begin() + 1);
    loader.refill(step);

    std::vector<std::pair<int64_t, uint64_t>> expected, drawn_samples;
    for (const Sample& sample : stream) {
      if (sample.index != dropped_index) expected.push_back(get_key(sample));
    }
    Cursor next = step.next;
    EXPECT_EQ(step.label_tokens, 4);
    EXPECT_EQ(next.sources[0], step.units.back().end);
    for (const auto& sample : get_keys(step)) drawn_samples.push_back(sample);
    // A run that resumes after this step continues with the same samples.
    Ledger restored = Ledger::restore(ledger.to_json(), "train.json", SampleOrder(23, 3), next);
    SingleSourceLoader resumed(records, processor, settings, 3, next, restored);
    for (int64_t i = 0; i < 8; ++i) {
      const GlobalBatch batch = loader.next();
      EXPECT_EQ(get_keys(resumed.next()), get_keys(batch)) << i;
      for (const auto& sample : get_keys(batch)) drawn_samples.push_back(sample);
    }
    expected.resize(drawn_samples.size());
    EXPECT_EQ(drawn_samples, expected) << ahead << " drawn ahead";
  }
}

TEST(Loader, NeverSkipsErrorsOfTheProgram) {
  const auto records = make_records(3);
  const auto expect_throw = [&](auto error) {
    const CapturedLog log;
    const FakeProcessor processor([error](int64_t) { throw error; });
    Ledger ledger("train.json", 3);
    SingleSourceLoader loader(records, processor, {.on_bad_sample = BadSamplePolicy::kSkip}, 0, {}, ledger);
    EXPECT_THROW(loader.next(), decltype(error));
    EXPECT_EQ(ledger.count(SampleStatus::kFailed), 1);
    EXPECT_THAT(log.text(), HasSubstr("error: train.json: sample s"));
    expect_complete_counts(ledger);
  };
  expect_throw(std::bad_alloc());
  expect_throw(InternalError("a bug"));
  expect_throw(usage_error("a wrong option"));
  expect_throw(42);
}

TEST(Loader, ThrowsIfAnEpochHasNoUsableSample) {
  auto records = make_records(4);
  const FakeProcessor processor(throw_too_long);
  const CapturedLog log;
  for (const Cursor& start : {make_source_cursor(0, 0), make_source_cursor(0, 2), make_source_cursor(3, 3)}) {
    Ledger ledger("train.json", 4);
    SingleSourceLoader loader(records, processor, {.on_bad_sample = BadSamplePolicy::kSkip}, 0, start, ledger);
    EXPECT_THAT(get_error([&] { loader.next(); }), HasSubstr("none of the 4 samples can be used"));
    EXPECT_EQ(ledger.count(SampleStatus::kDropped), 4);
  }
}

TEST(Loader, RejectsAnEmptyDataSetAndAForeignCursor) {
  const FakeProcessor processor;
  Ledger empty_ledger("train.json", 0);
  EXPECT_THAT(get_error([&] { SingleSourceLoader(make_records(0), processor, {}, 0, {}, empty_ledger); }),
              HasSubstr("has no samples"));
  Ledger ledger_of_three("train.json", 3);
  EXPECT_THAT(get_error([&] {
                SingleSourceLoader(make_records(3), processor, {}, 0, make_source_cursor(0, 3), ledger_of_three);
              }),
              HasSubstr("file has 3"));
}

TEST(Loader, StopsWhileThreadsAreBusy) {
  const auto records = make_records(40);
  const FakeProcessor processor(sleep_briefly);
  for (int64_t repetition = 0; repetition < 200; ++repetition) {
    Ledger ledger("train.json", 40);
    SingleSourceLoader loader(records, processor, {.global_batch_size = 3, .num_workers = 1 + repetition % 4},
                              static_cast<uint64_t>(repetition), {}, ledger);
    for (int64_t step = 0; step < repetition % 3; ++step) mark_used(ledger, loader.next());
    EXPECT_EQ(ledger.count(SampleStatus::kUsed), repetition % 3 * 3);
  }
}

}  // namespace
}  // namespace vlmtrain::data
