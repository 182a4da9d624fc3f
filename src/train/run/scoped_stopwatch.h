#pragma once

#include <chrono>

namespace vlmtrain::train {

/// A stopwatch that adds the duration of its life to `seconds` in the destructor.
class ScopedStopwatch {
 public:
  explicit ScopedStopwatch(double& seconds) : seconds_(seconds) {}
  ~ScopedStopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  ScopedStopwatch(const ScopedStopwatch&) = delete;
  ScopedStopwatch& operator=(const ScopedStopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace vlmtrain::train
