#include "data/on_workers.h"

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

constexpr int64_t kTogether = 16;
constexpr auto kProgressPause = std::chrono::milliseconds(100);

class WorkersCall {
 public:
  WorkersCall(int64_t count, const std::function<void(int64_t)>& work) : count_(count), work_(work) {}

  void run(int64_t workers, const std::function<void(int64_t)>& on_progress) {
    {
      std::vector<std::jthread> threads;
      try {
        threads.reserve(static_cast<size_t>(workers));
        for (int64_t i = 0; i < workers; ++i) threads.emplace_back([this] { do_some(); });
        wait_for(workers, on_progress);
      } catch (...) {
        stop_ = true;  // before the threads are joined
        throw;
      }
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void do_some() {
    try {
      for (int64_t first = next_.fetch_add(kTogether); first < count_ && !stop_; first = next_.fetch_add(kTogether)) {
        const int64_t end = std::min(first + kTogether, count_);
        for (int64_t index = first; index < end && !stop_; ++index) work_(index);
        done_ += end - first;
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      stop_ = true;
    }
    const std::lock_guard lock(mutex_);
    ++ended_;
    changed_.notify_one();
  }

  void wait_for(int64_t workers, const std::function<void(int64_t)>& on_progress) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kProgressPause, [&] { return ended_ == workers; })) {
      if (!on_progress || stop_) continue;
      lock.unlock();
      on_progress(done_);
      lock.lock();
    }
  }

  const int64_t count_;
  const std::function<void(int64_t)>& work_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> done_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::exception_ptr error_;
  int64_t ended_ = 0;
};

}  // namespace

void on_workers(int64_t count, int64_t workers, const std::function<void(int64_t)>& work,
                const std::function<void(int64_t done)>& on_progress) {
  WorkersCall(count, work).run(std::max<int64_t>(workers, 1), on_progress);
}

}  // namespace vlmtrain::data
