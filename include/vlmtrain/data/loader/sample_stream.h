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

#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::data {

/// A function that returns the next sample index of a sequence, or nothing at its end. Called by
/// one thread at a time, not always the same one.
using IndexGenerator = std::function<std::optional<int64_t>()>;

/// Returns a generator of the indices from 0 to samples - 1.
IndexGenerator make_sequential_generator(int64_t samples);

/// A function that returns the sample of an index, or throws. Called by several threads at the same
/// time.
using SampleFunction = std::function<Sample(int64_t index)>;

/// A sample to process, with its seed for this draw.
struct SampleRequest {
  int64_t index = -1;  ///< in the data set
  uint64_t seed = 0;   ///< see Sample::seed
};

// The counterparts of IndexGenerator and SampleFunction for requests with seeds.
using SampleRequestGenerator = std::function<std::optional<SampleRequest>()>;
using SampleRequestHandler = std::function<Sample(const SampleRequest& request)>;

/// The result of one request.
struct StreamItem {
  int64_t index = -1;
  Sample sample;             ///< empty after an error
  std::exception_ptr error;  ///< the exception of the processing, of any type
};

/// A pool of worker threads that process samples ahead of the consumer. Samples are returned in
/// order, so that the result does not depend on the number of workers. An exception is returned in
/// its item and does not affect other items. Each worker uses one core: its ATen operations start
/// no OpenMP threads.
///
///     const SampleStream::Settings settings{.num_workers = 2, .max_prefetch_samples = 16};
///     SampleStream stream(make_sequential_generator(samples), make_sample, settings);
///     while (auto item = stream.next()) …
class SampleStream {
 public:
  struct Settings {
    int64_t num_workers = 1;  ///< threads, >= 1
    /// Maximum number of samples that are being processed or ready for the consumer. At least one
    /// for each worker, even if the value is lower.
    int64_t max_prefetch_samples = 1;
    /// Maximum host memory of these samples; 0 for no limit. A sample that is being processed
    /// counts as the largest one so far. The sample that the consumer waits for is processed
    /// regardless.
    int64_t prefetch_bytes = 0;
  };

  /// Starts the workers. `source` and `make` are called until the destructor returns. REQUIRES:
  /// settings.num_workers >= 1.
  SampleStream(IndexGenerator source, SampleFunction make, Settings settings);
  SampleStream(SampleRequestGenerator source, SampleRequestHandler make, Settings settings);
  /// Waits until the workers have finished their current samples.
  ~SampleStream();
  SampleStream(const SampleStream&) = delete;
  SampleStream& operator=(const SampleStream&) = delete;

  /// Returns the next item, or nothing after the end of the sequence. Rethrows exceptions of the
  /// source; exceptions of the processing are in the items. REQUIRES: one consumer thread.
  std::optional<StreamItem> next();

  /// Returns whether a worker ever waited because prefetch_bytes were reached.
  bool was_memory_limited() const { return was_memory_limited_; }

 private:
  /// A sample that is being processed or ready for the consumer.
  struct SampleSlot {
    StreamItem item;
    uint64_t seed = 0;
    bool is_ready = false;
    int64_t bytes = 0;  ///< set when ready
  };

  /// Processes samples until the sequence ends or a stop is requested.
  void run_worker(const std::stop_token& stop);
  /// Returns whether the limits allow another sample. REQUIRES: mutex_ is held.
  bool can_start_sample();
  /// Returns a new slot for the next request; null at the end of the sequence. REQUIRES: mutex_ is
  /// held.
  SampleSlot* claim_slot();

  SampleRequestGenerator request_generator_;
  SampleRequestHandler process_request_;
  size_t max_prefetch_samples_;
  int64_t max_prefetch_bytes_;
  std::atomic<bool> was_memory_limited_{false};
  std::mutex mutex_;  // guards the following members and request_generator_
  std::condition_variable_any slot_available_;
  std::condition_variable front_ready_;
  std::deque<SampleSlot> slots_;  // in order; a deque does not move slots that workers fill
  int64_t ready_bytes_ = 0;
  int64_t num_ready_samples_ = 0;
  int64_t largest_sample_bytes_ = 0;
  bool has_sequence_ended_ = false;
  std::exception_ptr generator_error_;
  std::vector<std::jthread> workers_;  // last: joined before anything they use is destroyed
};

}  // namespace vlmtrain::data
