#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <deque>
#include <utility>

namespace vlmtrain::distributed {

/// How long this rank has waited for the others: its thread, or the stream that computes on its device.
class WaitTimer {
 public:
  void begin(at::Device device);
  void end(at::Device device);

  /// Of waits that are over. Waits for nothing.
  double seconds();
  /// Whether none goes on. Waits for nothing.
  bool is_idle();

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point start_;
  double seconds_ = 0;
  std::deque<std::pair<c10::Event, c10::Event>> pending_waits_;  // that are not over, as far as is known
};

}  // namespace vlmtrain::distributed
