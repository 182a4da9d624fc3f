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
  constexpr const char* kName = "VLMTRAIN_VGPU_LAUNCH_MICROSECONDS";
  const char* const value = std::getenv(kName);
  const std::string_view text = value == nullptr ? std::string_view() : std::string_view(value);
  if (text.empty()) return;
  int64_t microseconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), microseconds);
  if (error == std::errc() && end == text.data() + text.size() && microseconds >= 0) {
    per_kernel_ = std::chrono::microseconds(microseconds);
  } else {
    report({kName, "=", text, " is not a number of microseconds: kernels take no time"});
  }
}

void DeviceClock::queue() {
  if (!runs()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  done_ = std::max(done_, std::chrono::steady_clock::now()) + per_kernel_;
}

DeviceClock::Time DeviceClock::done() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

void DeviceClock::wait() {
  if (runs()) std::this_thread::sleep_until(done());
}

DeviceClock& device_clock() {
  return immortal<DeviceClock>();
}

}  // namespace vlmtrain::vgpu
