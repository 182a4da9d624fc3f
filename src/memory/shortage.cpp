#include "vlmtrain/memory/shortage.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <new>

#include "vlmtrain/base/first_line.h"

namespace vlmtrain::memory {

namespace {

constexpr int kCudaErrorMemoryAllocation = 2;  // cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY

struct Wording {
  std::string_view text;
  Scarce scarce;
};

/// LibTorch has no type for these.
constexpr std::array kWordings{
    Wording{"_STATUS_ALLOC_FAILED", Scarce::kDriver},
    // What cuBLAS says where it finds no memory for its handle.
    Wording{"CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate", Scarce::kDriver},
    Wording{"CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasLtCreate", Scarce::kDriver},
    Wording{"CUDA error: out of memory", Scarce::kDriver},
    Wording{"CUDA driver error: out of memory", Scarce::kDriver},
    // What is said before a launch, which harms nothing: fewer rows at a time are taken.
    Wording{"CUDA error: invalid configuration argument", Scarce::kKernel},
    Wording{"canUse32BitIndexMath", Scarce::kKernel},
    Wording{"DefaultCPUAllocator: can't allocate memory", Scarce::kHost},
    Wording{"DefaultCPUAllocator: not enough memory", Scarce::kHost},
    Wording{"Could not allocate memory", Scarce::kHost},
};

/// Where memory has run out, the allocator asks NVML who holds the card, for its message; what it throws where NVML
/// does not answer is not OutOfMemoryError, but an assertion about that.
bool fell_over_nvml(std::string_view text) {
  return text.starts_with("NVML_SUCCESS") && text.find("CUDACachingAllocator.cpp") != std::string_view::npos;
}

}  // namespace

std::string_view name_of(Scarce scarce) {
  switch (scarce) {
    case Scarce::kDevice:
      return "the device's memory";
    case Scarce::kDriver:
      return "the memory that the device's driver needs beside PyTorch's";
    case Scarce::kHost:
      return "the host's memory";
    case Scarce::kKernel:
      return "what a kernel of PyTorch can count";
  }
  return "memory";
}

std::optional<Shortage> shortage_in(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return Shortage{Scarce::kHost, "the system gives this process no more memory"};
  }
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  if (torch_error == nullptr) return std::nullopt;
  const std::string text = torch_error->what_without_backtrace();
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    const bool on_device = text.find("CUDA") != std::string::npos;
    return Shortage{on_device ? Scarce::kDevice : Scarce::kHost, first_line(text)};
  }
  if (fell_over_nvml(text)) {
    return Shortage{Scarce::kDevice, "CUDA out of memory (NVML does not start, so who holds how much is not known)"};
  }
  if (const auto* const failed_call = dynamic_cast<const c10::AcceleratorError*>(&error);
      failed_call != nullptr && failed_call->get_error_code() == kCudaErrorMemoryAllocation) {
    return Shortage{Scarce::kDriver, first_line(text)};
  }
  const auto* const said = std::ranges::find_if(
      kWordings, [&text](const Wording& wording) { return text.find(wording.text) != std::string::npos; });
  if (said == kWordings.end()) return std::nullopt;
  // What PyTorch's checks write before that is for its authors.
  return Shortage{said->scarce, first_line(said->scarce == Scarce::kHost ? text.substr(text.find(said->text)) : text)};
}

}  // namespace vlmtrain::memory
