#pragma once

#include <chrono>

namespace vlmtrain::train {

/// A scope whose duration is added to `seconds` at its end.
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
