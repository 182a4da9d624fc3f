#include "data/index/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace vlmtrain::data {

namespace {

/// Consecutive calls on one thread. Consecutive records are often in one block of a file. Chosen
/// without measurement.
constexpr int64_t kIndicesPerChunk = 16;
/// Time between calls of `on_progress`. Not tuned.
constexpr auto kProgressInterval = std::chrono::milliseconds(100);

/// The state of one parallel_for().
class ParallelForState {
 public:
  ParallelForState(int64_t count, const std::function<void(int64_t)>& task) : num_indices_(count), task_(task) {}

  void run(int64_t workers, const std::function<void(int64_t)>& on_progress) {
    {
      std::vector<std::jthread> threads;
      try {
        threads.reserve(static_cast<size_t>(workers));
        for (int64_t i = 0; i < workers; ++i) threads.emplace_back([this] { run_worker(); });
        wait_and_report_progress(workers, on_progress);
      } catch (...) {
        should_stop_ = true;  // before the destructor of `threads` joins them
        throw;
      }
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void run_worker() {
    try {
      for (int64_t chunk_begin = next_index_.fetch_add(kIndicesPerChunk); chunk_begin < num_indices_ && !should_stop_;
           chunk_begin = next_index_.fetch_add(kIndicesPerChunk)) {
        const int64_t chunk_end = std::min(chunk_begin + kIndicesPerChunk, num_indices_);
        for (int64_t index = chunk_begin; index < chunk_end && !should_stop_; ++index) task_(index);
        num_done_ += chunk_end - chunk_begin;
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      should_stop_ = true;
    }
    const std::lock_guard lock(mutex_);
    ++num_ended_workers_;
    worker_ended_.notify_one();
  }

  void wait_and_report_progress(int64_t workers, const std::function<void(int64_t)>& on_progress) {
    std::unique_lock lock(mutex_);
    while (!worker_ended_.wait_for(lock, kProgressInterval, [&] { return num_ended_workers_ == workers; })) {
      if (!on_progress || should_stop_) continue;
      lock.unlock();
      on_progress(num_done_);
      lock.lock();
    }
  }

  const int64_t num_indices_;
  const std::function<void(int64_t)>& task_;
  std::atomic<int64_t> next_index_{0};
  std::atomic<int64_t> num_done_{0};
  std::atomic<bool> should_stop_{false};
  std::mutex mutex_;  // guards the following members
  std::condition_variable worker_ended_;
  std::exception_ptr error_;
  int64_t num_ended_workers_ = 0;
};

}  // namespace

void parallel_for(int64_t count, int64_t workers, const std::function<void(int64_t)>& task,
                  const std::function<void(int64_t num_done)>& on_progress) {
  ParallelForState(count, task).run(std::max<int64_t>(workers, 1), on_progress);
}

}  // namespace vlmtrain::data
