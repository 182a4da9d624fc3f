#include "vgpu/core/clock.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "vgpu/core/immortal.h"
#include "vgpu/core/report.h"

namespace vlmtrain::vgpu {

DeviceClock::DeviceClock() {
  constexpr const char* kVariable = "VLMTRAIN_VGPU_LAUNCH_MICROSECONDS";
  const char* const value = std::getenv(kVariable);
  const std::string_view text = value == nullptr ? std::string_view() : std::string_view(value);
  if (text.empty()) return;
  int64_t microseconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), microseconds);
  if (error == std::errc() && end == text.data() + text.size() && microseconds >= 0) {
    kernel_duration_ = std::chrono::microseconds(microseconds);
  } else {
    report({kVariable, "=", text, " is not a number of microseconds: kernels take no time"});
  }
}

void DeviceClock::queue_kernel() {
  if (!is_enabled()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  completion_time_ = std::max(completion_time_, std::chrono::steady_clock::now()) + kernel_duration_;
}

DeviceClock::Time DeviceClock::completion_time() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return completion_time_;
}

void DeviceClock::wait() {
  if (is_enabled()) std::this_thread::sleep_until(completion_time());
}

DeviceClock& device_clock() {
  return leaky_singleton<DeviceClock>();
}

}  // namespace vlmtrain::vgpu
