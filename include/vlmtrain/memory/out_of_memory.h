#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::memory {

/// The kind of memory that ran out.
enum class MemoryKind {
  kDevice,       ///< PyTorch's caching allocator
  kDriver,       ///< driver memory outside of that allocator: kernel code, library workspaces, pinned host memory
  kHost,         ///< memory of the process
  kKernelIndex,  ///< not memory, but handled alike: a tensor has too many elements for a kernel's indices
};

/// Returns a name for messages: "the device's memory".
std::string_view to_string(MemoryKind kind);

/// An out-of-memory condition that an exception reported.
struct OutOfMemory {
  MemoryKind kind = MemoryKind::kDevice;
  std::string reason;  ///< one line, without a stack trace
};

/// Returns the out-of-memory condition that `error` reports, or nothing if it is another error.
/// Recognizes c10::OutOfMemoryError, std::bad_alloc, cudaErrorMemoryAllocation from any call,
/// …_STATUS_ALLOC_FAILED of CUDA libraries, plain c10::Error of LibTorch's CPU allocator, failed
/// NVML assertions of its CUDA allocator, and 32-bit index limits of kernels. These errors leave
/// the device usable, so the caller may retry with a smaller micro-batch.
std::optional<OutOfMemory> detect_out_of_memory(const std::exception& error);

}  // namespace vlmtrain::memory
