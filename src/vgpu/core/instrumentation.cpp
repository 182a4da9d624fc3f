#include "vgpu/core/instrumentation.h"

#include <fcntl.h>
#include <library_types.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "vgpu/core/object_lifetime.h"

namespace vlmtrain::vgpu {

void print_stderr_line(std::initializer_list<std::string_view> pieces) {
  std::string line("virtual GPU: ");
  for (const auto piece : pieces) line.append(piece);
  line.push_back('\n');
  std::fputs(line.c_str(), stderr);
}

namespace {

constexpr const char* kTraceEnvironmentVariable = "VLMTRAIN_VGPU_TRACE";
constexpr int kTraceFilePermissions = 0644;

}  // namespace

OperationTrace::OperationTrace() {
  const char* const path = std::getenv(kTraceEnvironmentVariable);
  if (path == nullptr || *path == '\0') return;
  file_ = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kTraceFilePermissions);
  if (file_ < 0)
    print_stderr_line(
        {kTraceEnvironmentVariable, "=", path, " cannot be opened: ", std::strerror(errno), "; tracing is off"});
}

void OperationTrace::add(std::initializer_list<std::string_view> pieces) {
  if (!is_enabled()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  line_.clear();
  for (const auto piece : pieces) line_.append(line_.empty() ? "" : " ").append(piece);
  line_.push_back('\n');
  if (write(file_, line_.data(), line_.size()) != static_cast<ssize_t>(line_.size())) {
    print_stderr_line(
        {kTraceEnvironmentVariable, ": cannot write a line: ", std::strerror(errno), "; the trace ends here"});
    close(file_);
    file_ = -1;
  }
}

OperationTrace& operation_trace() {
  return get_leaky_singleton<OperationTrace>();
}

namespace {

/// The unmodeled functions that were called so far, as an intrusive list.
struct UnmodeledFunctionList {
  std::mutex mutex;
  UnmodeledFunction* first = nullptr;
};

}  // namespace

void record_unmodeled_call(UnmodeledFunction& call) {
  ++global_counters().num_unmodeled_calls;
  ++call.num_calls;
  auto& called_functions = get_leaky_singleton<UnmodeledFunctionList>();
  const std::lock_guard<std::mutex> lock(called_functions.mutex);
  if (call.is_reported) return;
  call.is_reported = true;
  call.next = called_functions.first;
  called_functions.first = &call;
  print_stderr_line({call.name, " is not implemented; it returns \"not supported\" (docs/explanation/virtual-gpu.md)"});
}

void for_each_unmodeled_function(void (*visit)(void* context, const char* name, uint64_t num_calls), void* context) {
  auto& called_functions = get_leaky_singleton<UnmodeledFunctionList>();
  const std::lock_guard<std::mutex> lock(called_functions.mutex);
  for (const UnmodeledFunction* call = called_functions.first; call != nullptr; call = call->next) {
    if (call->num_calls > 0) visit(context, call->name, call->num_calls);
  }
}

void reset_unmodeled_call_counts() {
  auto& called_functions = get_leaky_singleton<UnmodeledFunctionList>();
  const std::lock_guard<std::mutex> lock(called_functions.mutex);
  for (UnmodeledFunction* call = called_functions.first; call != nullptr; call = call->next) call->num_calls = 0;
}

namespace {

/// Calls `visit` with each counter and its counterpart in the public struct.
template <class From, class To, class Visit>
void for_each_counter_pair(From& source, To& target_counters, const Visit& visit) {
  visit(source.num_launches, target_counters.num_launches);
  visit(source.num_rejected_launches, target_counters.num_rejected_launches);
  visit(source.num_matmuls, target_counters.num_matmuls);
  visit(source.matmul_flops, target_counters.matmul_flops);
  visit(source.misaligned_matmul_flops, target_counters.misaligned_matmul_flops);
  const auto visit_copy_statistics = [&visit](auto& copy_counts, auto& target) {
    visit(copy_counts.num_calls, target.num_calls);
    visit(copy_counts.bytes, target.bytes);
  };
  visit_copy_statistics(source.host_to_device_pinned, target_counters.host_to_device_pinned);
  visit_copy_statistics(source.host_to_device_pageable, target_counters.host_to_device_pageable);
  visit_copy_statistics(source.device_to_host_pinned, target_counters.device_to_host_pinned);
  visit_copy_statistics(source.device_to_host_pageable, target_counters.device_to_host_pageable);
  visit_copy_statistics(source.device_to_device, target_counters.device_to_device);
  visit(source.num_memsets, target_counters.num_memsets);
  visit(source.num_stream_synchronizations, target_counters.num_stream_synchronizations);
  visit(source.num_event_synchronizations, target_counters.num_event_synchronizations);
  visit(source.num_device_synchronizations, target_counters.num_device_synchronizations);
  visit_copy_statistics(source.side_stream_copies, target_counters.side_stream_copies);
  visit(source.num_early_side_stream_copies, target_counters.num_early_side_stream_copies);
  visit(source.num_copy_races, target_counters.num_copy_races);
  visit(source.num_stream_waits, target_counters.num_stream_waits);
  visit(source.num_blocking_copies, target_counters.num_blocking_copies);
  visit(source.num_host_allocations, target_counters.num_host_allocations);
  visit(source.num_unmodeled_calls, target_counters.num_unmodeled_calls);
}

}  // namespace

void AtomicGpuCounters::read(GpuCounters& counters) const {
  for_each_counter_pair(*this, counters,
                        [](const std::atomic<uint64_t>& count, uint64_t& target) { target = count.load(); });
}

void AtomicGpuCounters::reset() {
  GpuCounters ignored_counters;
  for_each_counter_pair(*this, ignored_counters, [](std::atomic<uint64_t>& count, uint64_t&) { count = 0; });
}

AtomicGpuCounters& global_counters() {
  return get_leaky_singleton<AtomicGpuCounters>();
}

namespace {

/// Bytes of the vector loads and stores of matrix kernels.
constexpr int kMaxMatmulAlignment = 16;

int64_t get_element_bytes(int type) {
  switch (type) {
    case CUDA_R_64F:
      return 8;
    case CUDA_R_32F:
    case CUDA_R_32I:
      return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    default:
      return 1;
  }
}

}  // namespace

int compute_alignment_bytes(std::initializer_list<MatrixOperand> operands) {
  uint64_t bits = kMaxMatmulAlignment;
  for (const MatrixOperand& operand : operands) {
    bits |= reinterpret_cast<uintptr_t>(operand.data);
    if (operand.rows == 1 || operand.columns == 1) continue;
    bits |= static_cast<uint64_t>(operand.leading_dimension * get_element_bytes(operand.type));
  }
  return 1 << std::countr_zero(bits);
}

void MatmulCounter::add(const MatmulShape& product) {
  const auto flops = static_cast<uint64_t>(2 * product.m * product.n * product.k * product.batch);
  ++global_counters().num_matmuls;
  global_counters().matmul_flops += flops;
  if (product.alignment_bytes < kMaxMatmulAlignment) global_counters().misaligned_matmul_flops += flops;
  if (operation_trace().is_enabled()) {
    operation_trace().add({"product", std::to_string(product.m), std::to_string(product.n), std::to_string(product.k),
                           std::to_string(product.batch), std::to_string(product.input_type),
                           std::to_string(product.output_type), std::to_string(product.alignment_bytes)});
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  ++num_calls_by_shape_[product];
}

void MatmulCounter::for_each_matmul(void (*visit)(void* context, const MatmulShape* product, uint64_t num_calls),
                                    void* context) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [product, num_calls] : num_calls_by_shape_) visit(context, &product, num_calls);
}

void MatmulCounter::reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  num_calls_by_shape_.clear();
}

MatmulCounter& matmul_counter() {
  return get_leaky_singleton<MatmulCounter>();
}

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
