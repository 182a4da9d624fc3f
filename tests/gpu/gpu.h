#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "parity/deviations.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::gpu {

/// Returns VLMTRAIN_GPU_TESTS_DEVICE, or cuda:0 if it is not set. If it is `cpu`, the tests compare
/// the CPU with itself, which checks the tests.
inline std::string device_name() {
  const char* const name = std::getenv("VLMTRAIN_GPU_TESTS_DEVICE");
  return name != nullptr && *name != '\0' ? name : "cuda:0";
}

/// Returns whether VLMTRAIN_GPU_TESTS_FAULT is set. It changes the GPU's results by a quarter, so
/// that every test must fail.
inline bool is_fault_planted() {
  return std::getenv("VLMTRAIN_GPU_TESTS_FAULT") != nullptr;
}

/// Copies the GPU's result to the CPU, with the planted fault if selected.
inline at::Tensor fetch_result(const at::Tensor& tensor) {
  const at::Tensor result = tensor.detach().cpu();
  return is_fault_planted() ? result.to(at::kFloat).mul(1.25).add(1) : result;
}

/// A test that needs a real GPU, or the CPU if selected; a virtual GPU computes no values.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (vgpu::find_virtual_gpu_interface() != nullptr) GTEST_SKIP() << "the GPU is virtual";
    if (device_name() != "cpu" && memory::open_device("auto").is_cpu()) GTEST_SKIP() << "this machine has no GPU";
    device_ = memory::open_device(device_name());
  }
  void TearDown() override { deviations_.report(); }

  /// Returns whether the GPU has flash attention and bf16 matrix products (sm_80 or newer).
  bool has_bf16() const { return device_.is_cpu() || memory::get_architecture(device_) >= 80; }

  at::Device device_ = at::kCPU;
  parity::Deviations deviations_;
};

/// Tolerance of a sum of some thousand terms in another order, through about sixteen operations: 64
/// · 16 units of roundoff.
constexpr double kFp32Bound = 1024.0 / (1 << 24);

/// Returns the unit roundoff.
inline double unit_roundoff(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 1.0 / 256;
  return dtype == at::kHalf ? 1.0 / 2048 : 1.0 / (1 << 24);
}

inline std::string short_name(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return "bf16";
  return dtype == at::kHalf ? "fp16" : "fp32";
}

}  // namespace vlmtrain::gpu
