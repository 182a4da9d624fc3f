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
