#include "vgpu/core/fault_injector.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "vgpu/core/instrumentation.h"
#include "vgpu/core/object_lifetime.h"

namespace vlmtrain::vgpu {

namespace {

constexpr std::array<std::string_view, kNumFaultPoints> kFaultPointNames{"launch", "cublas_create", "host_allocation",
                                                                         "device_allocation", "illegal_address"};

bool is_launch(size_t call) {
  return call == static_cast<size_t>(FaultPoint::kLaunch) || call == static_cast<size_t>(FaultPoint::kIllegalAddress);
}

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional{value} : std::nullopt;
}

/// One setting of VLMTRAIN_VGPU_FAIL. `call` is an index into kFaultPointNames and a FaultPoint.
struct FaultSetting {
  size_t call = 0;
  std::string_view kernel = {};
  uint64_t first = 0;
  uint64_t count = 1;
};

/// Parses CALL:FIRST or CALL:FIRST+COUNT; CALL may be launch@KERNEL or illegal_address@KERNEL.
std::optional<FaultSetting> parse_fault_setting(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view call_and_kernel = text.substr(0, colon);
  const size_t at = call_and_kernel.find('@');
  size_t call = 0;
  while (call < kFaultPointNames.size() && kFaultPointNames[call] != call_and_kernel.substr(0, at)) ++call;
  if (call == kFaultPointNames.size()) return std::nullopt;
  const std::string_view kernel = at == std::string_view::npos ? std::string_view() : call_and_kernel.substr(at + 1);
  if (!kernel.empty() && !is_launch(call)) return std::nullopt;
  const std::string_view numbers = text.substr(colon + 1);
  const size_t plus = numbers.find('+');
  const auto first = parse_number(numbers.substr(0, plus));
  const auto count =
      plus == std::string_view::npos ? std::optional<uint64_t>{1} : parse_number(numbers.substr(plus + 1));
  if (!first || !count) return std::nullopt;
  return FaultSetting{call, kernel, *first, *count};
}

}  // namespace

FaultInjector::FaultInjector() {
  read_environment();
}

void FaultInjector::schedule_faults(FaultPoint call, uint64_t first, uint64_t count) {
  FailureWindow& window = windows_[static_cast<size_t>(call)];
  window.count = 0;  // no call fails until all fields are set
  window.calls = 0;
  window.first = first;
  window.count = count;
}

bool FaultInjector::should_fail(FaultPoint call, std::string_view kernel) {
  FailureWindow& window = windows_[static_cast<size_t>(call)];
  if (window.calls <= window.first && kernel.find(window.kernel) == std::string_view::npos) return false;
  const uint64_t count = window.count;
  const uint64_t call_number = window.calls++;
  return count > 0 && call_number >= window.first && call_number - window.first < count;
}

void FaultInjector::read_environment() {
  const char* const value = std::getenv("VLMTRAIN_VGPU_FAIL");
  std::string_view remaining_settings = value == nullptr ? std::string_view() : std::string_view(value);
  while (!remaining_settings.empty()) {
    const std::string_view text = remaining_settings.substr(0, remaining_settings.find(','));
    remaining_settings.remove_prefix(std::min(remaining_settings.size(), text.size() + 1));
    if (const auto setting = parse_fault_setting(text)) {
      schedule_faults(static_cast<FaultPoint>(setting->call), setting->first, setting->count);
      windows_[setting->call].kernel = setting->kernel;
    } else {
      print_stderr_line({"VLMTRAIN_VGPU_FAIL=", text,
                         " is ignored; expected CALL:FIRST or CALL:FIRST+COUNT with CALL one of launch, ",
                         "launch@KERNEL, cublas_create, host_allocation, device_allocation, illegal_address, "
                         "illegal_address@KERNEL"});
    }
  }
}

FaultInjector& fault_injector() {
  return get_leaky_singleton<FaultInjector>();
}

}  // namespace vlmtrain::vgpu
