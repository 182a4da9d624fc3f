#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain {

/// The virtual GPU of this process, which ctest sets up (tests/CMakeLists.txt).
inline const vgpu::Interface& card() {
  const vgpu::Interface* const interface = vgpu::attached();
  if (interface == nullptr) throw std::runtime_error("this process is not on the virtual GPU: run the test with ctest");
  return *interface;
}

inline vgpu::Counters counters() {
  vgpu::Counters now;
  card().read(&now);
  return now;
}

/// Calls of functions that are not modelled, by name.
inline std::map<std::string, uint64_t> unknown_calls() {
  std::map<std::string, uint64_t> calls;
  card().each_unknown_call(
      [](void* context, const char* name, uint64_t count) {
        (*static_cast<std::map<std::string, uint64_t>*>(context))[name] = count;
      },
      &calls);
  return calls;
}

/// That since the last reset something ran, all of it accepted, and the host neither waited for the card nor read from
/// it; small copies from pinned memory may go to it.
inline void expect_accepted_without_a_wait() {
  const auto done = counters();
  EXPECT_GT(done.launches, 0U);
  EXPECT_EQ(done.rejected_launches, 0U);
  EXPECT_EQ(unknown_calls(), (std::map<std::string, uint64_t>{}));
  EXPECT_EQ(done.device_to_host_pinned.calls + done.device_to_host_pageable.calls, 0U);
  EXPECT_EQ(done.host_to_device_pageable.calls, 0U);
  EXPECT_EQ(done.stream_synchronizations, 0U);
  EXPECT_EQ(done.device_synchronizations, 0U);
  EXPECT_EQ(done.blocking_copies, 0U);
}

/// Launches by mangled name of the kernel.
inline std::map<std::string, uint64_t> launches_by_kernel() {
  std::map<std::string, uint64_t> launches;
  card().each_kernel([](void* context, const char* name,
                        uint64_t count) { (*static_cast<std::map<std::string, uint64_t>*>(context))[name] += count; },
                     &launches);
  return launches;
}

/// Calls by size of the product.
inline std::map<vgpu::Product, uint64_t> products() {
  std::map<vgpu::Product, uint64_t> calls;
  card().each_product(
      [](void* context, const vgpu::Product* product, uint64_t count) {
        (*static_cast<std::map<vgpu::Product, uint64_t>*>(context))[*product] = count;
      },
      &calls);
  return calls;
}

}  // namespace vlmtrain
