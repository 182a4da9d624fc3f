#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain {

/// Returns the virtual GPU of this process, which ctest configures (tests/CMakeLists.txt).
inline const vgpu::VirtualGpuInterface& virtual_gpu() {
  const vgpu::VirtualGpuInterface* const interface = vgpu::find_virtual_gpu_interface();
  if (interface == nullptr) throw std::runtime_error("this process is not on the virtual GPU: run the test with ctest");
  return *interface;
}

inline vgpu::GpuCounters counters() {
  vgpu::GpuCounters result;
  virtual_gpu().read_counters(&result);
  return result;
}

/// Returns the calls of unmodeled functions, by name.
inline std::map<std::string, uint64_t> unmodeled_calls() {
  std::map<std::string, uint64_t> calls;
  virtual_gpu().for_each_unmodeled_function(
      [](void* context, const char* name, uint64_t count) {
        (*static_cast<std::map<std::string, uint64_t>*>(context))[name] = count;
      },
      &calls);
  return calls;
}

/// Checks that kernels ran since the last reset, that all were accepted, and that the host did not wait for
/// the GPU. Copies from and to pinned memory are allowed.
inline void expect_accepted_without_waits() {
  const auto result = counters();
  EXPECT_GT(result.num_launches, 0U);
  EXPECT_EQ(result.num_rejected_launches, 0U);
  EXPECT_EQ(unmodeled_calls(), (std::map<std::string, uint64_t>{}));
  EXPECT_EQ(result.device_to_host_pageable.num_calls, 0U);
  EXPECT_EQ(result.host_to_device_pageable.num_calls, 0U);
  EXPECT_EQ(result.num_stream_synchronizations, 0U);
  EXPECT_EQ(result.num_device_synchronizations, 0U);
  EXPECT_EQ(result.num_blocking_copies, 0U);
  EXPECT_EQ(result.num_copy_races, 0U);
}

/// Checks the same, and that the host read nothing from the GPU.
inline void expect_accepted_without_synchronization() {
  expect_accepted_without_waits();
  EXPECT_EQ(counters().device_to_host_pinned.num_calls, 0U);
}

/// Returns launches by the kernel's mangled name.
inline std::map<std::string, uint64_t> launches_by_kernel() {
  std::map<std::string, uint64_t> launches;
  virtual_gpu().for_each_kernel(
      [](void* context, const char* name, uint64_t count) {
        (*static_cast<std::map<std::string, uint64_t>*>(context))[name] += count;
      },
      &launches);
  return launches;
}

/// Returns calls of matrix products by size.
inline std::map<vgpu::MatmulShape, uint64_t> products() {
  std::map<vgpu::MatmulShape, uint64_t> calls;
  virtual_gpu().for_each_matmul(
      [](void* context, const vgpu::MatmulShape* product, uint64_t count) {
        (*static_cast<std::map<vgpu::MatmulShape, uint64_t>*>(context))[*product] = count;
      },
      &calls);
  return calls;
}

}  // namespace vlmtrain
