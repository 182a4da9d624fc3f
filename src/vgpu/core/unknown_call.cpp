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

void record(UnknownCall& call) {
  ++counts().unknown_calls;
  ++call.calls;
  auto& all = immortal<UnknownCalls>();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (call.reported) return;
  call.reported = true;
  call.next = all.first;
  all.first = &call;
  report({call.name, " is not modelled; it answers \"not supported\" (docs/virtual-gpu.md)"});
}

void each_unknown_call(void (*visit)(void* context, const char* name, uint64_t calls), void* context) {
  auto& all = immortal<UnknownCalls>();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const UnknownCall* call = all.first; call != nullptr; call = call->next) {
    if (call->calls > 0) visit(context, call->name, call->calls);
  }
}

void reset_unknown_calls() {
  auto& all = immortal<UnknownCalls>();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (UnknownCall* call = all.first; call != nullptr; call = call->next) call->calls = 0;
}

}  // namespace vlmtrain::vgpu
