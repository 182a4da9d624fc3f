#include "vgpu/core/instrumentation.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "vgpu/core/object_lifetime.h"

namespace vlmtrain::vgpu {

void print_stderr_line(std::initializer_list<std::string_view> pieces) {
  std::string line("virtual GPU: ");
  for (const auto piece : pieces) line.append(piece);
  line.push_back('\n');
  std::fputs(line.c_str(), stderr);
}

namespace {

constexpr const char* kTraceVariable = "VLMTRAIN_VGPU_TRACE";
constexpr int kTracePermissions = 0644;

}  // namespace

Trace::Trace() {
  const char* const path = std::getenv(kTraceVariable);
  if (path == nullptr || *path == '\0') return;
  file_ = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kTracePermissions);
  if (file_ < 0)
    print_stderr_line({kTraceVariable, "=", path, " cannot be opened: ", std::strerror(errno), "; tracing is off"});
}

void Trace::add(std::initializer_list<std::string_view> pieces) {
  if (!is_enabled()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  line_.clear();
  for (const auto piece : pieces) line_.append(line_.empty() ? "" : " ").append(piece);
  line_.push_back('\n');
  if (write(file_, line_.data(), line_.size()) != static_cast<ssize_t>(line_.size())) {
    print_stderr_line({kTraceVariable, ": cannot write a line: ", std::strerror(errno), "; the trace ends here"});
    close(file_);
    file_ = -1;
  }
}

Trace& trace() {
  return get_leaky_singleton<Trace>();
}

namespace {

/// The unmodeled functions that were called so far, as an intrusive list.
struct UnknownCallList {
  std::mutex mutex;
  UnknownCall* first = nullptr;
};

}  // namespace

void record_unknown_call(UnknownCall& call) {
  ++global_counters().unknown_calls;
  ++call.calls;
  auto& unknown_calls = get_leaky_singleton<UnknownCallList>();
  const std::lock_guard<std::mutex> lock(unknown_calls.mutex);
  if (call.is_reported) return;
  call.is_reported = true;
  call.next = unknown_calls.first;
  unknown_calls.first = &call;
  print_stderr_line({call.name, " is not implemented; it returns \"not supported\" (docs/virtual-gpu.md)"});
}

void for_each_unknown_call(void (*visit)(void* context, const char* name, uint64_t calls), void* context) {
  auto& unknown_calls = get_leaky_singleton<UnknownCallList>();
  const std::lock_guard<std::mutex> lock(unknown_calls.mutex);
  for (const UnknownCall* call = unknown_calls.first; call != nullptr; call = call->next) {
    if (call->calls > 0) visit(context, call->name, call->calls);
  }
}

void reset_unknown_calls() {
  auto& unknown_calls = get_leaky_singleton<UnknownCallList>();
  const std::lock_guard<std::mutex> lock(unknown_calls.mutex);
  for (UnknownCall* call = unknown_calls.first; call != nullptr; call = call->next) call->calls = 0;
}

namespace {

/// Calls `visit` with each counter and its counterpart in the public struct.
template <class From, class To, class Visit>
void for_each_counter(From& source, To& target_counters, const Visit& visit) {
  visit(source.launches, target_counters.launches);
  visit(source.rejected_launches, target_counters.rejected_launches);
  visit(source.matmuls, target_counters.matmuls);
  visit(source.matmul_flops, target_counters.matmul_flops);
  const auto visit_copy_count = [&visit](auto& copy_counts, auto& target) {
    visit(copy_counts.calls, target.calls);
    visit(copy_counts.bytes, target.bytes);
  };
  visit_copy_count(source.host_to_device_pinned, target_counters.host_to_device_pinned);
  visit_copy_count(source.host_to_device_pageable, target_counters.host_to_device_pageable);
  visit_copy_count(source.device_to_host_pinned, target_counters.device_to_host_pinned);
  visit_copy_count(source.device_to_host_pageable, target_counters.device_to_host_pageable);
  visit_copy_count(source.device_to_device, target_counters.device_to_device);
  visit(source.fills, target_counters.fills);
  visit(source.stream_synchronizations, target_counters.stream_synchronizations);
  visit(source.event_synchronizations, target_counters.event_synchronizations);
  visit(source.device_synchronizations, target_counters.device_synchronizations);
  visit_copy_count(source.side_stream_copies, target_counters.side_stream_copies);
  visit(source.early_side_stream_copies, target_counters.early_side_stream_copies);
  visit(source.stream_waits, target_counters.stream_waits);
  visit(source.blocking_copies, target_counters.blocking_copies);
  visit(source.host_allocations, target_counters.host_allocations);
  visit(source.unknown_calls, target_counters.unknown_calls);
}

}  // namespace

void AtomicCounters::read(Counters& counters) const {
  for_each_counter(*this, counters,
                   [](const std::atomic<uint64_t>& count, uint64_t& target) { target = count.load(); });
}

void AtomicCounters::reset() {
  Counters ignored_counters;
  for_each_counter(*this, ignored_counters, [](std::atomic<uint64_t>& count, uint64_t&) { count = 0; });
}

AtomicCounters& global_counters() {
  return get_leaky_singleton<AtomicCounters>();
}

void MatmulCounter::add(const Matmul& product) {
  ++global_counters().matmuls;
  global_counters().matmul_flops += static_cast<uint64_t>(2 * product.m * product.n * product.k * product.batch);
  if (trace().is_enabled()) {
    trace().add({"product", std::to_string(product.m), std::to_string(product.n), std::to_string(product.k),
                 std::to_string(product.batch), std::to_string(product.input_type),
                 std::to_string(product.output_type)});
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_[product];
}

void MatmulCounter::for_each_matmul(void (*visit)(void* context, const Matmul* product, uint64_t calls),
                                    void* context) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [product, calls] : calls_) visit(context, &product, calls);
}

void MatmulCounter::reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_.clear();
}

MatmulCounter& matmul_counter() {
  return get_leaky_singleton<MatmulCounter>();
}

}  // namespace vlmtrain::vgpu
