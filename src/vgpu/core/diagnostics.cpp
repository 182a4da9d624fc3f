#include "vgpu/core/diagnostics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "vgpu/core/counters.h"
#include "vgpu/core/object_lifetime.h"

namespace vlmtrain::vgpu {

void report(std::initializer_list<std::string_view> pieces) {
  std::string line("virtual GPU: ");
  for (const auto piece : pieces) line.append(piece);
  line.push_back('\n');
  std::fputs(line.c_str(), stderr);
}

namespace {

constexpr const char* kTraceFile = "VLMTRAIN_VGPU_TRACE";
constexpr int kTracePermissions = 0644;

}  // namespace

Trace::Trace() {
  const char* const path = std::getenv(kTraceFile);
  if (path == nullptr || *path == '\0') return;
  file_ = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kTracePermissions);
  if (file_ < 0) report({kTraceFile, "=", path, " cannot be written: ", std::strerror(errno), ": no trace"});
}

void Trace::add(std::initializer_list<std::string_view> pieces) {
  if (!is_enabled()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  line_.clear();
  for (const auto piece : pieces) line_.append(line_.empty() ? "" : " ").append(piece);
  line_.push_back('\n');
  if (write(file_, line_.data(), line_.size()) != static_cast<ssize_t>(line_.size())) {
    report({kTraceFile, ": a line could not be written: ", std::strerror(errno), ": the trace ends"});
    close(file_);
    file_ = -1;
  }
}

Trace& trace() {
  return leaky_singleton<Trace>();
}

namespace {

/// The unknown calls so far, as an intrusive list.
struct UnknownCalls {
  std::mutex mutex;
  UnknownCall* first = nullptr;
};

}  // namespace

void record_unknown_call(UnknownCall& call) {
  ++global_counters().unknown_calls;
  ++call.calls;
  auto& unknown_calls = leaky_singleton<UnknownCalls>();
  const std::lock_guard<std::mutex> lock(unknown_calls.mutex);
  if (call.reported) return;
  call.reported = true;
  call.next = unknown_calls.first;
  unknown_calls.first = &call;
  report({call.name, " is not modelled; it answers \"not supported\" (docs/virtual-gpu.md)"});
}

void for_each_unknown_call(void (*visit)(void* context, const char* name, uint64_t calls), void* context) {
  auto& unknown_calls = leaky_singleton<UnknownCalls>();
  const std::lock_guard<std::mutex> lock(unknown_calls.mutex);
  for (const UnknownCall* call = unknown_calls.first; call != nullptr; call = call->next) {
    if (call->calls > 0) visit(context, call->name, call->calls);
  }
}

void reset_unknown_calls() {
  auto& unknown_calls = leaky_singleton<UnknownCalls>();
  const std::lock_guard<std::mutex> lock(unknown_calls.mutex);
  for (UnknownCall* call = unknown_calls.first; call != nullptr; call = call->next) call->calls = 0;
}

}  // namespace vlmtrain::vgpu
