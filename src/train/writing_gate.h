#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace vlmtrain::train {

/// Lets one through at a time, who may leave it in another thread than he came in. Must outlive its passes.
class WritingGate {
 public:
  class Pass {
   public:
    explicit Pass(WritingGate& gate) : gate_(&gate) {}
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (gate_ != nullptr) gate_->leave();
    }

   private:
    WritingGate* gate_;
  };

  Pass pass() {
    std::unique_lock lock(mutex_);
    left_.wait(lock, [this] { return !is_taken_ && !is_closed_; });
    is_taken_ = true;
    return Pass(*this);
  }

  /// Waits until nobody is within, but no longer than `patience`; who comes from then on waits for ever.
  void close(std::chrono::seconds patience) {
    std::unique_lock lock(mutex_);
    is_closed_ = true;
    left_.wait_for(lock, patience, [this] { return !is_taken_; });
  }

 private:
  void leave() {
    const std::lock_guard lock(mutex_);
    is_taken_ = false;
    left_.notify_all();
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable left_;
  bool is_taken_ = false;
  bool is_closed_ = false;
};

}  // namespace vlmtrain::train
