#include "vlmtrain/memory/shortage.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <new>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/fault_injection.h"

namespace vlmtrain::memory {
namespace {

using testing::HasSubstr;
using testing::Not;

std::optional<Shortage> shortage_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return shortage_in(error);
  }
  ADD_FAILURE() << "nothing was thrown";
  return std::nullopt;
}

const c10::SourceLocation kHere{"here", __FILE__, static_cast<uint32_t>(__LINE__)};

TEST(ShortageTest, KnowsWhatTheAllocatorOfTheDeviceThrows) {
  const auto found = shortage_of([] {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 20.00 MiB.\nSee documentation");
  });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->of, Scarce::kDevice);
  EXPECT_EQ(found->reason, "CUDA out of memory. Tried to allocate 20.00 MiB.");
}

/// The texts are those of LibTorch 2.11's libc10_cuda.so.
TEST(ShortageTest, KnowsTheAllocatorThatFallsOverNvml) {
  const auto assertion = [](const std::string& condition, const char* file) {
    TORCH_CHECK(false, condition, " INTERNAL ASSERT FAILED at \"/pytorch/c10/cuda/", file,
                "\":1135, please report a bug to PyTorch. ");
  };
  for (const char* condition :
       {"NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_()",
        "NVML_SUCCESS == DriverAPI::get()->nvmlDeviceGetHandleByPciBusId_v2_( pci_id, &nvml_device)",
        "NVML_SUCCESS == r"}) {
    const auto found = shortage_of([&] { assertion(condition, "CUDACachingAllocator.cpp"); });
    ASSERT_TRUE(found) << condition;
    EXPECT_EQ(found->of, Scarce::kDevice);
    EXPECT_THAT(found->reason, Not(HasSubstr("ASSERT")));
  }
  // Two cards that look for each other, and the allocator's own bugs.
  EXPECT_FALSE(
      shortage_of([&] { assertion("NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_()", "PeerToPeerAccess.cpp"); }));
  EXPECT_FALSE(shortage_of([&] { assertion("before->next == after", "CUDACachingAllocator.cpp"); }));
}

TEST(ShortageTest, KnowsWhatCallsOfCudaThrow) {
  for (const char* text :
       {"CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`", "CUDA error: text to come"}) {
    const auto found = shortage_of([text] { throw c10::AcceleratorError(kHere, 2, text); });
    ASSERT_TRUE(found) << text;
    EXPECT_EQ(found->of, Scarce::kDriver);
    EXPECT_THAT(found->reason, Not(HasSubstr("\n")));
  }
  for (const char* text : {"CUDA driver error: out of memory",
                           "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                           "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
                           "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"}) {
    const auto found = shortage_of([text] { TORCH_CHECK(false, text); });
    ASSERT_TRUE(found) << text;
    EXPECT_EQ(found->of, Scarce::kDriver) << text;
  }
}

/// LibTorch's own errors: more than any machine has.
/// Nothing ran, so the device is as it was, and fewer rows at a time are the remedy.
TEST(ShortageTest, KnowsWhatNoKernelCounts) {
  const auto launch = shortage_of(
      [] { throw c10::AcceleratorError(kHere, 9, "CUDA error: invalid configuration argument\nSearch for it"); });
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->of, Scarce::kKernel);
  const auto index = shortage_of([] { TORCH_CHECK(false, "Expected canUse32BitIndexMath(input) to be true"); });
  ASSERT_TRUE(index);
  EXPECT_EQ(index->of, Scarce::kKernel);
}

TEST(ShortageTest, KnowsWhatTheHostThrows) {
  const auto found =
      shortage_of([] { at::empty({std::numeric_limits<int64_t>::max() / 4}, at::TensorOptions(at::kByte)); });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->of, Scarce::kHost);
  EXPECT_THAT(found->reason, testing::StartsWith("DefaultCPUAllocator"));

  const auto plain = shortage_of([] { std::vector<char> bytes(std::numeric_limits<int64_t>::max() / 2); });
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->of, Scarce::kHost);

  FaultInjection faults;
  faults.arm({.limit_bytes = 0});
  const auto refused = shortage_of([] { at::empty({64}); });
  faults.disarm();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->of, Scarce::kHost);
}

/// An illegal address, an assertion on the device: every later call of CUDA fails too.
TEST(ShortageTest, IsNothingElse) {
  EXPECT_FALSE(shortage_of(
      [] { throw c10::AcceleratorError(kHere, 700, "CUDA error: an illegal memory access was encountered"); }));
  EXPECT_FALSE(
      shortage_of([] { throw c10::AcceleratorError(kHere, 710, "CUDA error: device-side assert triggered"); }));
  EXPECT_FALSE(shortage_of(
      [] { TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(…)`"); }));
  EXPECT_FALSE(shortage_of([] { TORCH_CHECK(false, "mat1 and mat2 shapes cannot be multiplied"); }));
  EXPECT_FALSE(shortage_of([] { throw run_error("a sentence about memory"); }));
}

}  // namespace
}  // namespace vlmtrain::memory
