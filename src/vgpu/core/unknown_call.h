#pragma once

#include <atomic>
#include <cstdint>

namespace vlmtrain::vgpu {

/// A function of a CUDA library that is not modelled. cmake/virtual_gpu_stubs.py generates one for every function that
/// the real library has and no file here defines: the definition here wins, since the generated one is weak.
struct UnknownCall {
  const char* name;
  std::atomic<uint64_t> calls{0};
  bool reported = false;
  UnknownCall* next = nullptr;
};

/// Counts the call, and reports it on stderr the first time. Thread-safe.
void record_unknown_call(UnknownCall& call);

void for_each_unknown_call(void (*visit)(void* context, const char* name, uint64_t calls), void* context);
void reset_unknown_calls();

}  // namespace vlmtrain::vgpu

/// Defines `function` as not modelled: it returns `status`, its library's word for "not supported".
#define VLMTRAIN_VGPU_UNKNOWN_CALL(function, status)                      \
  extern "C" __attribute__((weak)) long function() {                      \
    static constinit vlmtrain::vgpu::UnknownCall call{.name = #function}; \
    vlmtrain::vgpu::record_unknown_call(call);                            \
    return status;                                                        \
  }
