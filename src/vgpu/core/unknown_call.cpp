#include "vgpu/core/unknown_call.h"

#include <mutex>

#include "vgpu/core/count.h"
#include "vgpu/core/immortal.h"
#include "vgpu/core/report.h"

namespace vlmtrain::vgpu {

namespace {

/// Every unknown call that happened, in a list through the calls themselves.
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
