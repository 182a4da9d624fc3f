#include "vlmtrain/memory/out_of_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <new>

#include "vlmtrain/base/error.h"

namespace vlmtrain::memory {

namespace {

constexpr int kCudaErrorMemoryAllocation = 2;  // also CUDA_ERROR_OUT_OF_MEMORY

struct OutOfMemoryPattern {
  std::string_view text;
  MemoryKind kind;
};

/// Parts of the messages of errors that have no exception type of their own in LibTorch 2.11.
constexpr std::array kOutOfMemoryPatterns{
    OutOfMemoryPattern{"_STATUS_ALLOC_FAILED", MemoryKind::kDriver},
    // cuBLAS and cuBLASLt without memory for their handle.
    OutOfMemoryPattern{"CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate", MemoryKind::kDriver},
    OutOfMemoryPattern{"CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasLtCreate", MemoryKind::kDriver},
    OutOfMemoryPattern{"CUDA error: out of memory", MemoryKind::kDriver},
    OutOfMemoryPattern{"CUDA driver error: out of memory", MemoryKind::kDriver},
    // CUDA rejects the configuration before the launch, so the device is intact. Smaller
    // micro-batches avoid the error.
    OutOfMemoryPattern{"CUDA error: invalid configuration argument", MemoryKind::kKernelIndex},
    OutOfMemoryPattern{"canUse32BitIndexMath", MemoryKind::kKernelIndex},
    OutOfMemoryPattern{"DefaultCPUAllocator: can't allocate memory", MemoryKind::kHost},
    OutOfMemoryPattern{"DefaultCPUAllocator: not enough memory", MemoryKind::kHost},
    OutOfMemoryPattern{"Could not allocate memory", MemoryKind::kHost},
};

/// Returns whether `text` is the failed assertion that PyTorch's CUDA allocator throws instead of
/// OutOfMemoryError if NVML, which it queries for its message, does not answer.
bool is_nvml_assertion(std::string_view text) {
  return text.starts_with("NVML_SUCCESS") && text.find("CUDACachingAllocator.cpp") != std::string_view::npos;
}

}  // namespace

std::string_view to_string(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice:
      return "the device's memory";
    case MemoryKind::kDriver:
      return "the device memory that the driver needs in addition to PyTorch's";
    case MemoryKind::kHost:
      return "the host's memory";
    case MemoryKind::kKernelIndex:
      return "the index range of a PyTorch kernel";
  }
  return "memory";
}

std::optional<OutOfMemory> detect_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return OutOfMemory{MemoryKind::kHost, "the system has no more memory for this process"};
  }
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  if (torch_error == nullptr) return std::nullopt;
  const std::string text = torch_error->what_without_backtrace();
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    const bool is_device_memory = text.find("CUDA") != std::string::npos;
    return OutOfMemory{is_device_memory ? MemoryKind::kDevice : MemoryKind::kHost, get_first_line(text)};
  }
  if (is_nvml_assertion(text)) {
    return OutOfMemory{MemoryKind::kDevice,
                       "CUDA out of memory (NVML is unavailable, so memory use by process is unknown)"};
  }
  if (const auto* const failed_call = dynamic_cast<const c10::AcceleratorError*>(&error);
      failed_call != nullptr && failed_call->get_error_code() == kCudaErrorMemoryAllocation) {
    return OutOfMemory{MemoryKind::kDriver, get_first_line(text)};
  }
  const auto* const match = std::ranges::find_if(kOutOfMemoryPatterns, [&text](const OutOfMemoryPattern& pattern) {
    return text.find(pattern.text) != std::string::npos;
  });
  if (match == kOutOfMemoryPatterns.end()) return std::nullopt;
  // In host errors, PyTorch prepends the failed check, which does not help the user.
  return OutOfMemory{match->kind,
                     get_first_line(match->kind == MemoryKind::kHost ? text.substr(text.find(match->text)) : text)};
}

}  // namespace vlmtrain::memory
