#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "vlmtrain/data/sample.h"

namespace vlmtrain::data {

/// Names the sample at each place of a sequence, one call a place; nothing at the end. Called by one thread at a time,
/// but not always the same one.
using IndexGenerator = std::function<std::optional<int64_t>()>;

/// The whole data set once, as the file has it.
IndexGenerator make_sequential_indices(int64_t samples);

/// Makes the sample of an index, or throws. Called by several threads at once.
using MakeSample = std::function<Sample(int64_t index)>;

/// A sample of a sequence that may come again, and then with another seed.
struct SampleRequest {
  int64_t index = -1;
  uint64_t seed = 0;
};

/// The same for such sequences.
using RequestSource = std::function<std::optional<SampleRequest>()>;
using MakeRequestedSample = std::function<Sample(const SampleRequest& request)>;

/// What one place of the sequence gave.
struct StreamItem {
  int64_t index = -1;
  Sample sample;             ///< empty if there is an error
  std::exception_ptr error;  ///< whatever was thrown, of any type
};

/// Makes the samples of a sequence on worker threads ahead of the consumer and hands them out strictly in order: they
/// do not depend on the number of workers. An exception travels with its place and does not stop the others. The
/// workers use one core each: ATen operations start no OpenMP teams in them.
///
///   SampleStream stream(make_sequential_indices(samples), make_sample, {.workers = 2, .ahead = 16});
///   while (auto item = stream.next()) …
class SampleStream {
 public:
  struct Settings {
    int64_t workers = 1;  ///< threads, >= 1
    int64_t prefetch_samples =
        1;  ///< samples made or being made that the consumer has not taken; at least one a worker
    /// Of those samples together, where one being made counts as the largest so far; the next one the consumer waits
    /// for is made in any case. 0: no bound.
    int64_t prefetch_bytes = 0;
  };

  SampleStream(IndexGenerator source, MakeSample make, Settings settings);
  SampleStream(RequestSource source, MakeRequestedSample make, Settings settings);
  /// Waits only for samples that are being made at this moment.
  ~SampleStream();
  SampleStream(const SampleStream&) = delete;
  SampleStream& operator=(const SampleStream&) = delete;

  /// The next item, or nothing behind the end of the sequence. For one consumer thread. Throws only what the source
  /// threw.
  std::optional<StreamItem> next();

  /// Whether a worker has ever waited since prefetch_bytes were reached.
  bool was_memory_limited() const { return was_memory_limited_; }

 private:
  struct Slot {
    StreamItem item;
    uint64_t seed = 0;
    bool ready = false;
    int64_t bytes = 0;  ///< once ready
  };

  void run_worker(const std::stop_token& stop);
  bool can_start_sample();
  Slot* claim_slot();

  RequestSource source_;
  MakeRequestedSample make_;
  size_t max_prefetch_samples_;
  int64_t max_prefetch_bytes_;
  std::atomic<bool> was_memory_limited_{false};
  std::mutex mutex_;  // guards what follows and source_
  std::condition_variable_any slot_available_;
  std::condition_variable front_ready_;
  std::deque<Slot> slots_;  // in order; its ends grow and shrink without moving the slots that workers fill
  int64_t ready_bytes_ = 0;
  int64_t ready_samples_ = 0;
  int64_t largest_bytes_ = 0;
  bool ended_ = false;
  std::exception_ptr source_error_;
  std::vector<std::jthread> workers_;  // last: joined before anything they use is destroyed
};

}  // namespace vlmtrain::data
