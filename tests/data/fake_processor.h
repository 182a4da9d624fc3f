#pragma once

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "vlmtrain/data/loader/loader.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// A processor of samples with two tokens that identify their record, with another token in the
/// samples of process_headers(). Counts the calls of process(). `fault`: called by process(); may
/// throw or wait.
class FakeProcessor : public SampleProcessor {
 public:
  explicit FakeProcessor(std::function<void(int64_t index)> fault = {}) : fault_(std::move(fault)) {}

  Sample process(const io::Record& record, int64_t index) const override {
    ++calls_;
    if (fault_) fault_(index);
    return make_fake_sample(record, index, 100 + index);
  }

  /// Stores the seed in Sample::task.
  Sample process_augmented(const io::Record& record, int64_t index, uint64_t seed) const override {
    Sample sample = process(record, index);
    sample.task = fmt::format("{}", seed);
    return sample;
  }

  Sample process_headers(const io::Record& record, int64_t index) const override {
    return make_fake_sample(record, index, 500 + index);
  }

  int64_t calls() const { return calls_; }

 private:
  static Sample make_fake_sample(const io::Record& record, int64_t index, int64_t token) {
    Sample sample;
    sample.index = index;
    sample.id = record.id;
    sample.token_ids = {1, token};
    sample.label_mask = {0, static_cast<char>(record.task == "unlabelled" ? 0 : 1)};
    return sample;
  }

  std::function<void(int64_t index)> fault_;
  mutable std::atomic<int64_t> calls_{0};
};

inline io::InMemoryRecords make_records(int64_t count) {
  io::InMemoryRecords records(std::vector<io::Record>(static_cast<size_t>(count)));
  for (int64_t i = 0; i < count; ++i) {
    records[i].id = fmt::format("s{}", i);
    records[i].location = fmt::format("line {}", i + 1);
  }
  return records;
}

struct OrderHolder {
  SampleOrder order;
};

/// A loader of all records as one mixture source.
class SingleSourceLoader : private OrderHolder, public Loader {
 public:
  SingleSourceLoader(const io::Records& records, const SampleProcessor& processor, LoaderSettings settings,
                     uint64_t seed, Cursor start, Ledger& ledger)
      : OrderHolder{SampleOrder(records.size(), seed)},
        Loader(records, processor, order, settings, std::move(start), ledger) {}
};

/// Returns the cursor of a data set with one mixture source.
inline Cursor make_source_cursor(int64_t epoch, int64_t position) {
  return {.sources = {{.epoch = epoch, .offset = position}}, .source_deficits = {0}, .num_batches = 0};
}

/// Waits 0 to 150 microseconds, depending on the index, so that threads overtake each other.
inline void sleep_briefly(int64_t index) {
  std::this_thread::sleep_for(std::chrono::microseconds(index * 7919 % 4 * 50));
}

inline void throw_too_long(int64_t index) {
  throw SampleError("too long", fmt::format("sample s{} is too long; raise data.max_length", index));
}

/// Records that count how often one is read.
class CountingRecords final : public io::Records {
 public:
  explicit CountingRecords(const io::InMemoryRecords& records) : records_(records) {}
  int64_t size() const override { return records_.size(); }
  io::Record at(int64_t index) const override {
    ++reads;
    return records_.at(index);
  }
  uint64_t version_hash() const override { return data_version_hash; }

  mutable std::atomic<int64_t> reads = 0;
  uint64_t data_version_hash = 5;

 private:
  const io::InMemoryRecords& records_;
};

}  // namespace vlmtrain::data
