#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::memory {

/// Whose memory ran out.
enum class MemoryKind {
  kDevice,  ///< PyTorch's caching allocator got no more
  kDriver,  ///< beside it: a kernel's code, a library's workspace, pinned memory of the host
  kHost,    ///< the process's own
  kKernel,  ///< no memory, but with the same remedy: a kernel that cannot count so many rows or elements
};

/// As people read it: "the device's memory".
std::string_view to_string(MemoryKind kind);

/// Memory that ran out, as an exception says it.
struct OutOfMemory {
  MemoryKind kind = MemoryKind::kDevice;
  std::string reason;  ///< one line, without a trace
};

/// What ran out, if that is what `error` says: c10::OutOfMemoryError, std::bad_alloc, and the other errors that
/// LibTorch makes of the same (CUDA's cudaErrorMemoryAllocation from any call, a library's …_STATUS_ALLOC_FAILED, its
/// CPU allocator's plain c10::Error, its CUDA allocator's assertion that NVML answers), or that a kernel was asked for
/// more than it can count. Nothing for any other error:
/// what broke the device stays broken, and trying again is of no use then.
std::optional<OutOfMemory> detect_out_of_memory(const std::exception& error);

}  // namespace vlmtrain::memory
