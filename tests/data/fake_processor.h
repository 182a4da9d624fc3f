#pragma once

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "vlmtrain/data/loader.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// Samples of two tokens that name their record, made by as many calls as are counted; their outlines, which are not
/// counted, name it by another number. `trouble` may throw or wait.
class FakeProcessor : public SampleProcessor {
 public:
  explicit FakeProcessor(std::function<void(int64_t index)> trouble = {}) : trouble_(std::move(trouble)) {}

  Sample process(const io::Record& record, int64_t index) const override {
    ++calls_;
    if (trouble_) trouble_(index);
    return sample_of(record, index, 100 + index);
  }

  /// Names the seed as well.
  Sample process_augmented(const io::Record& record, int64_t index, uint64_t seed) const override {
    Sample sample = process(record, index);
    sample.task = fmt::format("{}", seed);
    return sample;
  }

  Sample outline(const io::Record& record, int64_t index) const override {
    return sample_of(record, index, 500 + index);
  }

  int64_t calls() const { return calls_; }

 private:
  static Sample sample_of(const io::Record& record, int64_t index, int64_t name) {
    Sample sample;
    sample.index = index;
    sample.id = record.id;
    sample.token_ids = {1, name};
    sample.is_label = {0, static_cast<char>(record.task == "unlabelled" ? 0 : 1)};
    return sample;
  }

  std::function<void(int64_t index)> trouble_;
  mutable std::atomic<int64_t> calls_{0};
};

inline io::RecordList make_records(int64_t count) {
  io::RecordList records(std::vector<io::Record>(static_cast<size_t>(count)));
  for (int64_t i = 0; i < count; ++i) {
    records[i].id = fmt::format("s{}", i);
    records[i].place = fmt::format("line {}", i + 1);
  }
  return records;
}

struct OwnOrder {
  DrawOrder order;
};

/// A loader of all records in one lane.
class OneLaneLoader : private OwnOrder, public Loader {
 public:
  OneLaneLoader(const io::Records& records, const SampleProcessor& processor, LoaderSettings settings, uint64_t seed,
                Cursor start, Ledger& ledger)
      : OwnOrder{DrawOrder(records.size(), seed)},
        Loader(records, processor, order, settings, std::move(start), ledger) {}
};

/// Where a data set of one lane goes on.
inline Cursor cursor_at(int64_t epoch, int64_t position) {
  return {.lanes = {{.epoch = epoch, .position = position}}, .due = {0}, .batches = 0};
}

/// Lets threads overtake each other: a wait of 0 to 150 microseconds that differs from index to index.
inline void stagger(int64_t index) {
  std::this_thread::sleep_for(std::chrono::microseconds(index * 7919 % 4 * 50));
}

inline void reject(int64_t index) {
  throw SampleError("too long", fmt::format("sample s{} is too long; raise data.max_length", index));
}

}  // namespace vlmtrain::data
