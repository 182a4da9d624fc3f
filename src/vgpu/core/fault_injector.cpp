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

bool is_launch_fault(size_t fault_point) {
  return fault_point == static_cast<size_t>(FaultPoint::kLaunch) ||
         fault_point == static_cast<size_t>(FaultPoint::kIllegalAddress);
}

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional{value} : std::nullopt;
}

/// One setting of VLMTRAIN_VGPU_FAIL. `fault_point` is an index into kFaultPointNames and a
/// FaultPoint.
struct FaultSetting {
  size_t fault_point = 0;
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
  size_t fault_point = 0;
  while (fault_point < kFaultPointNames.size() && kFaultPointNames[fault_point] != call_and_kernel.substr(0, at))
    ++fault_point;
  if (fault_point == kFaultPointNames.size()) return std::nullopt;
  const std::string_view kernel = at == std::string_view::npos ? std::string_view() : call_and_kernel.substr(at + 1);
  if (!kernel.empty() && !is_launch_fault(fault_point)) return std::nullopt;
  const std::string_view numbers = text.substr(colon + 1);
  const size_t plus_position = numbers.find('+');
  const auto first = parse_number(numbers.substr(0, plus_position));
  const auto count = plus_position == std::string_view::npos ? std::optional<uint64_t>{1}
                                                             : parse_number(numbers.substr(plus_position + 1));
  if (!first || !count) return std::nullopt;
  return FaultSetting{fault_point, kernel, *first, *count};
}

}  // namespace

FaultInjector::FaultInjector() {
  load_environment_faults();
}

void FaultInjector::schedule_faults(FaultPoint fault_point, uint64_t first, uint64_t count) {
  FaultWindow& window = fault_windows_[static_cast<size_t>(fault_point)];
  window.count = 0;  // no call fails until all fields are set
  window.num_calls = 0;
  window.first = first;
  window.count = count;
}

bool FaultInjector::consume_scheduled_fault(FaultPoint fault_point, std::string_view kernel) {
  FaultWindow& window = fault_windows_[static_cast<size_t>(fault_point)];
  if (window.num_calls <= window.first && kernel.find(window.kernel) == std::string_view::npos) return false;
  const uint64_t count = window.count;
  const uint64_t call_index = window.num_calls++;
  return count > 0 && call_index >= window.first && call_index - window.first < count;
}

void FaultInjector::load_environment_faults() {
  const char* const value = std::getenv("VLMTRAIN_VGPU_FAIL");
  std::string_view remaining_settings = value == nullptr ? std::string_view() : std::string_view(value);
  while (!remaining_settings.empty()) {
    const std::string_view text = remaining_settings.substr(0, remaining_settings.find(','));
    remaining_settings.remove_prefix(std::min(remaining_settings.size(), text.size() + 1));
    if (const auto setting = parse_fault_setting(text)) {
      schedule_faults(static_cast<FaultPoint>(setting->fault_point), setting->first, setting->count);
      fault_windows_[setting->fault_point].kernel = setting->kernel;
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
