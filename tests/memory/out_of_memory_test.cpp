#include "vlmtrain/memory/out_of_memory.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <new>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/allocation_tracking.h"

namespace vlmtrain::memory {
namespace {

using testing::HasSubstr;
using testing::Not;

std::optional<OutOfMemory> catch_out_of_memory(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return detect_out_of_memory(error);
  }
  ADD_FAILURE() << "nothing was thrown";
  return std::nullopt;
}

const c10::SourceLocation kHere{"here", __FILE__, static_cast<uint32_t>(__LINE__)};

TEST(OutOfMemoryDetectionTest, DetectsDeviceAllocatorErrors) {
  const auto actual = catch_out_of_memory([] {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 20.00 MiB.\nSee documentation");
  });
  ASSERT_TRUE(actual);
  EXPECT_EQ(actual->kind, MemoryKind::kDevice);
  EXPECT_EQ(actual->reason, "CUDA out of memory. Tried to allocate 20.00 MiB.");
}

/// The texts are those of LibTorch 2.11's libc10_cuda.so.
TEST(OutOfMemoryDetectionTest, DetectsNvmlAssertions) {
  const auto assertion = [](const std::string& condition, const char* file) {
    TORCH_CHECK(false, condition, " INTERNAL ASSERT FAILED at \"/pytorch/c10/cuda/", file,
                "\":1135, please report a bug to PyTorch. ");
  };
  for (const char* condition :
       {"NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_()",
        "NVML_SUCCESS == DriverAPI::get()->nvmlDeviceGetHandleByPciBusId_v2_( pci_id, &nvml_device)",
        "NVML_SUCCESS == r"}) {
    const auto actual = catch_out_of_memory([&] { assertion(condition, "CUDACachingAllocator.cpp"); });
    ASSERT_TRUE(actual) << condition;
    EXPECT_EQ(actual->kind, MemoryKind::kDevice);
    EXPECT_THAT(actual->reason, Not(HasSubstr("ASSERT")));
  }
  // Errors of peer access between GPUs and bugs of the allocator itself are not memory errors.
  EXPECT_FALSE(catch_out_of_memory(
      [&] { assertion("NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_()", "PeerToPeerAccess.cpp"); }));
  EXPECT_FALSE(catch_out_of_memory([&] { assertion("before->next == after", "CUDACachingAllocator.cpp"); }));
}

TEST(OutOfMemoryDetectionTest, DetectsCudaErrors) {
  for (const char* text :
       {"CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`", "CUDA error: text to come"}) {
    const auto actual = catch_out_of_memory([text] { throw c10::AcceleratorError(kHere, 2, text); });
    ASSERT_TRUE(actual) << text;
    EXPECT_EQ(actual->kind, MemoryKind::kDriver);
    EXPECT_THAT(actual->reason, Not(HasSubstr("\n")));
  }
  for (const char* text : {"CUDA driver error: out of memory",
                           "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                           "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
                           "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"}) {
    const auto actual = catch_out_of_memory([text] { TORCH_CHECK(false, text); });
    ASSERT_TRUE(actual) << text;
    EXPECT_EQ(actual->kind, MemoryKind::kDriver) << text;
  }
}

/// LibTorch's CPU errors, for more memory than any machine has, and kernels whose launch is
/// rejected: nothing ran, so the device is intact.
TEST(OutOfMemoryDetectionTest, DetectsKernelSizeLimits) {
  const auto launch = catch_out_of_memory(
      [] { throw c10::AcceleratorError(kHere, 9, "CUDA error: invalid configuration argument\nSearch for it"); });
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->kind, MemoryKind::kKernelIndex);
  const auto index = catch_out_of_memory([] { TORCH_CHECK(false, "Expected canUse32BitIndexMath(input) to be true"); });
  ASSERT_TRUE(index);
  EXPECT_EQ(index->kind, MemoryKind::kKernelIndex);
}

TEST(OutOfMemoryDetectionTest, DetectsHostErrors) {
  const auto actual =
      catch_out_of_memory([] { at::empty({std::numeric_limits<int64_t>::max() / 4}, at::TensorOptions(at::kByte)); });
  ASSERT_TRUE(actual);
  EXPECT_EQ(actual->kind, MemoryKind::kHost);
  EXPECT_THAT(actual->reason, testing::StartsWith("DefaultCPUAllocator"));

  const auto bad_alloc = catch_out_of_memory([] { std::vector<char> bytes(std::numeric_limits<int64_t>::max() / 2); });
  ASSERT_TRUE(bad_alloc);
  EXPECT_EQ(bad_alloc->kind, MemoryKind::kHost);

  AllocationFaultInjector faults;
  faults.arm({.limit_bytes = 0});
  const auto rejected = catch_out_of_memory([] { at::empty({64}); });
  faults.disarm();
  ASSERT_TRUE(rejected);
  EXPECT_EQ(rejected->kind, MemoryKind::kHost);
}

/// After an illegal address or a device-side assertion every later CUDA call fails too.
TEST(OutOfMemoryDetectionTest, IgnoresOtherErrors) {
  EXPECT_FALSE(catch_out_of_memory(
      [] { throw c10::AcceleratorError(kHere, 700, "CUDA error: an illegal memory access was encountered"); }));
  EXPECT_FALSE(
      catch_out_of_memory([] { throw c10::AcceleratorError(kHere, 710, "CUDA error: device-side assert triggered"); }));
  EXPECT_FALSE(catch_out_of_memory(
      [] { TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(…)`"); }));
  EXPECT_FALSE(catch_out_of_memory([] { TORCH_CHECK(false, "mat1 and mat2 shapes cannot be multiplied"); }));
  EXPECT_FALSE(catch_out_of_memory([] { throw run_error("a sentence about memory"); }));
}

}  // namespace
}  // namespace vlmtrain::memory
