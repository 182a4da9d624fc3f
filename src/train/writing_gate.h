#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace vlmtrain::train {

/// Lets one through at a time, who may leave it in another thread than he came in. Must outlive its passes.
class CheckpointLock {
 public:
  class Guard {
   public:
    explicit Guard(CheckpointLock& lock) : lock_(&lock) {}
    Guard(Guard&& other) noexcept : lock_(std::exchange(other.lock_, nullptr)) {}
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    Guard& operator=(Guard&&) = delete;
    ~Guard() {
      if (lock_ != nullptr) lock_->release();
    }

   private:
    CheckpointLock* lock_;
  };

  Guard acquire() {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [this] { return !is_held_ && !is_closed_; });
    is_held_ = true;
    return Guard(*this);
  }

  /// Waits until nobody is within, but no longer than `timeout`; who comes from then on waits for ever.
  void close(std::chrono::seconds timeout) {
    std::unique_lock lock(mutex_);
    is_closed_ = true;
    released_.wait_for(lock, timeout, [this] { return !is_held_; });
  }

 private:
  void release() {
    const std::lock_guard lock(mutex_);
    is_held_ = false;
    released_.notify_all();
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable released_;
  bool is_held_ = false;
  bool is_closed_ = false;
};

}  // namespace vlmtrain::train
