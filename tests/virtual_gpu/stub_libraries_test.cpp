
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "virtual_gpu/cuda_call.h"
#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/gpu_table.h"

namespace vlmtrain {
namespace {

constexpr int kFromPointers = 4;  // cudaMemcpyDefault

class VirtualGpuTest : public testing::Test {
 protected:
  void SetUp() override { virtual_gpu().reset(); }
};

TEST_F(VirtualGpuTest, UsesGpuFromEnvironment) {
  const auto* const gpu = memory::find_gpu_spec(std::getenv("VLMTRAIN_VGPU_NAME"));
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->name, virtual_gpu().gpu_name());
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  EXPECT_EQ(call("cudaMemGetInfo", &free_bytes, &total_bytes), kSuccess);
  EXPECT_EQ(total_bytes, static_cast<size_t>(gpu->memory_bytes));
}

TEST_F(VirtualGpuTest, DeviceMemoryIsLimited) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  call("cudaMemGetInfo", &free_bytes, &total_bytes);
  void* large = nullptr;
  void* small = nullptr;
  constexpr size_t kPage = 2 << 20;
  ASSERT_EQ(call("cudaMalloc", &large, free_bytes / kPage * kPage), kSuccess);
  EXPECT_EQ(call("cudaMalloc", &small, kPage), kOutOfMemory);
  EXPECT_EQ(call("cudaGetLastError"), kOutOfMemory);
  EXPECT_EQ(call("cudaGetLastError"), kSuccess);
  EXPECT_EQ(call("cudaFree", large), kSuccess);
  EXPECT_EQ(call("cudaMalloc", &small, kPage), kSuccess);
  EXPECT_EQ(call("cudaFree", small), kSuccess);
  EXPECT_EQ(counters().num_allocations, 2U);
  EXPECT_EQ(counters().num_failed_allocations, 1U);
}

TEST_F(VirtualGpuTest, PagesAreInUseUntilTheyAreUnmappedAndReleased) {
  constexpr size_t kPage = 2 << 20;
  const auto initial_used_bytes = counters().used_bytes;
  uint64_t address = 0;
  uint64_t pages = 0;
  std::array<char, 64> properties{};
  ASSERT_EQ(call("cuMemAddressReserve", &address, 4 * kPage, size_t{0}, uint64_t{0}, uint64_t{0}), kSuccess);
  ASSERT_EQ(call("cuMemCreate", &pages, kPage, properties.data(), uint64_t{0}), kSuccess);
  EXPECT_EQ(call("cuMemMap", address, kPage, size_t{0}, pages, uint64_t{0}), kSuccess);
  EXPECT_EQ(call("cuMemMap", address, kPage, size_t{0}, pages, uint64_t{0}), kInvalidValue);
  EXPECT_EQ(call("cuMemRelease", pages), kSuccess);
  EXPECT_EQ(counters().used_bytes, initial_used_bytes + kPage);
  EXPECT_EQ(call("cuMemUnmap", address, kPage), kSuccess);
  EXPECT_EQ(counters().used_bytes, initial_used_bytes);
  EXPECT_EQ(call("cuMemRelease", pages), kInvalidValue);
  EXPECT_EQ(call("cuMemAddressFree", address, 4 * kPage), kSuccess);
  EXPECT_EQ(call("cuMemCreate", &pages, size_t{1} << 50, properties.data(), uint64_t{0}), kOutOfMemory);
}

TEST_F(VirtualGpuTest, CopiesAreCountedByDirectionAndHostMemoryKind) {
  constexpr size_t kBytes = 64;
  void* device = nullptr;
  void* pinned = nullptr;
  std::array<std::byte, kBytes> pageable;
  pageable.fill(std::byte{7});
  ASSERT_EQ(call("cudaMalloc", &device, kBytes), kSuccess);
  ASSERT_EQ(call("cudaMallocHost", &pinned, kBytes), kSuccess);
  void* const stream = nullptr;
  const auto copy = [&](void* to, void* from) {
    EXPECT_EQ(call("cudaMemcpyAsync", to, from, kBytes, kFromPointers, stream), kSuccess);
  };
  copy(pinned, pageable.data());
  EXPECT_EQ(*static_cast<std::byte*>(pinned), std::byte{7});
  copy(device, pinned);
  copy(device, pageable.data());
  copy(device, device);
  copy(pageable.data(), device);
  EXPECT_TRUE(std::ranges::all_of(pageable, [](std::byte value) { return value == std::byte{0}; }));
  copy(pinned, device);
  EXPECT_EQ(call("cudaMemcpy", pinned, device, kBytes, kFromPointers), kSuccess);

  const auto result = counters();
  EXPECT_EQ(result.host_to_device_pinned.num_calls, 1U);
  EXPECT_EQ(result.host_to_device_pageable.num_calls, 1U);
  EXPECT_EQ(result.device_to_device.bytes, kBytes);
  EXPECT_EQ(result.device_to_host_pageable.num_calls, 1U);
  EXPECT_EQ(result.device_to_host_pinned.bytes, 2 * kBytes);
  EXPECT_EQ(result.num_blocking_copies, 1U);
  EXPECT_EQ(result.num_host_allocations, 1U);
  EXPECT_EQ(call("cudaFreeHost", pinned), kSuccess);
  EXPECT_EQ(call("cudaFree", device), kSuccess);
}

TEST_F(VirtualGpuTest, UnknownCallsAreReportedByName) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(call("cudaMallocArray", nullptr, nullptr, size_t{1}, size_t{1}, 0U), kNotSupported);
  EXPECT_EQ(call("cudaMallocArray", nullptr, nullptr, size_t{1}, size_t{1}, 0U), kNotSupported);
  const std::string output = testing::internal::GetCapturedStderr();
  EXPECT_NE(output.find("cudaMallocArray"), std::string::npos);
  EXPECT_EQ(std::ranges::count(output, '\n'), 1);
  EXPECT_EQ(unmodeled_calls(), (std::map<std::string, uint64_t>{{"cudaMallocArray", 2}}));
  EXPECT_EQ(counters().num_unmodeled_calls, 2U);
}

TEST_F(VirtualGpuTest, MatmulsAreCountedBySize) {
  const auto options = at::TensorOptions(at::kFloat).device(memory::open_device("cuda"));
  const at::Tensor a = at::ones({3, 5}, options);
  const at::Tensor b = at::ones({5, 7}, options);
  virtual_gpu().reset();
  at::mm(a, b);
  // Row-major C = A · B is cuBLAS's column-major Cᵀ = Bᵀ · Aᵀ.
  constexpr int kFloat32 = 0;
  const vgpu::MatmulShape expected{
      .m = 7, .n = 3, .k = 5, .batch = 1, .input_type = kFloat32, .output_type = kFloat32, .alignment_bytes = 4};
  EXPECT_EQ(products(), (std::map<vgpu::MatmulShape, uint64_t>{{expected, 1}}));
  EXPECT_EQ(counters().matmul_flops, 2U * 3 * 5 * 7);
}

TEST_F(VirtualGpuTest, MatmulsHaveTheAlignmentOfTheirMatrices) {
  const auto options = at::TensorOptions(at::kBFloat16).device(memory::open_device("cuda"));
  const at::Tensor x = at::zeros({64, 96}, options), weight = at::zeros({32, 96}, options);
  const auto alignment = [&](int64_t first, int64_t width) {
    virtual_gpu().reset();
    at::mm(x.narrow(1, first, width), weight.narrow(1, 0, width).t());
    return products().begin()->first.alignment_bytes;
  };
  EXPECT_EQ(alignment(0, 96), 16);
  EXPECT_EQ(alignment(0, 95), 16) << "the leading dimension is 96";
  EXPECT_EQ(alignment(4, 64), 8) << "the address";
  EXPECT_EQ(counters().misaligned_matmul_flops, counters().matmul_flops);
  virtual_gpu().reset();
  at::mm(at::zeros({64, 54}, options), at::zeros({54, 32}, options));
  EXPECT_EQ(products().begin()->first.alignment_bytes, 4) << "108 bytes per row";
  virtual_gpu().reset();
  at::mm(at::zeros({1, 54}, options), at::zeros({54, 32}, options));
  EXPECT_EQ(products().begin()->first.alignment_bytes, 16) << "a vector has no leading dimension";
  EXPECT_EQ(counters().misaligned_matmul_flops, 0U);
}

TEST_F(VirtualGpuTest, ReadingAValueCountsAsCopyAndSynchronization) {
  const auto options = at::TensorOptions(at::kFloat).device(memory::open_device("cuda"));
  const at::Tensor scalar = at::ones({}, options);
  virtual_gpu().reset();
  EXPECT_EQ(scalar.item<float>(), 0);
  const auto result = counters();
  EXPECT_EQ(result.device_to_host_pinned.num_calls + result.device_to_host_pageable.num_calls, 1U);
  EXPECT_EQ(result.num_stream_synchronizations, 1U);
}

}  // namespace
}  // namespace vlmtrain
