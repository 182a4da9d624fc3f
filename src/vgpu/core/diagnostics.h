#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>

namespace vlmtrain::vgpu {

/// Writes the pieces as a line to stderr. The stand-ins cannot throw through C, nor use the program's log.
void report(std::initializer_list<std::string_view> pieces);

/// What the card was asked to do, in order, a line each, in the file that VLMTRAIN_VGPU_TRACE names; what the file had
/// stays before it. A line is whole at once, so that a process that is killed leaves what it did. Thread-safe.
class Trace {
 public:
  Trace();

  bool is_enabled() const { return file_ >= 0; }

  /// The pieces with a blank between them as a line, if it is on.
  void add(std::initializer_list<std::string_view> pieces);

 private:
  std::mutex mutex_;
  int file_ = -1;
  std::string line_;
};

Trace& trace();

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
