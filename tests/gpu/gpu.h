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

/// VLMTRAIN_GPU_TESTS_DEVICE: cuda:0 if it is not set. With `cpu` the CPU is compared with itself, which shows that the
/// tests themselves are right.
inline std::string device_name() {
  const char* const name = std::getenv("VLMTRAIN_GPU_TESTS_DEVICE");
  return name != nullptr && *name != '\0' ? name : "cuda:0";
}

/// VLMTRAIN_GPU_TESTS_FAULT: what is compared on the card's side is off by a quarter, so that every test has to fail.
inline bool is_fault_planted() {
  return std::getenv("VLMTRAIN_GPU_TESTS_FAULT") != nullptr;
}

/// The card's result on the CPU.
inline at::Tensor fetch_result(const at::Tensor& tensor) {
  const at::Tensor result = tensor.detach().cpu();
  return is_fault_planted() ? result.to(at::kFloat).mul(1.25).add(1) : result;
}

/// Needs a real GPU, or the CPU where it is asked for; a virtual one computes nothing.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (vgpu::find_interface() != nullptr) GTEST_SKIP() << "the GPU is a virtual one";
    if (device_name() != "cpu" && memory::open_device("auto").is_cpu()) GTEST_SKIP() << "there is no GPU";
    device_ = memory::open_device(device_name());
  }
  void TearDown() override { deviations_.report(); }

  /// Whether the card has flash attention and products in bf16 (sm_80 or newer).
  bool has_bf16() const { return device_.is_cpu() || memory::get_architecture(device_) >= 80; }

  at::Device device_ = at::kCPU;
  parity::Deviations deviations_;
};

/// What a sum of some thousand terms, rounded in another order through some sixteen operations, may be off by: 64 · 16
/// units of roundoff.
constexpr double kFp32Bound = 1024.0 / (1 << 24);

/// Unit of roundoff.
inline double unit_roundoff(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 1.0 / 256;
  return dtype == at::kHalf ? 1.0 / 2048 : 1.0 / (1 << 24);
}

inline std::string short_name(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return "bf16";
  return dtype == at::kHalf ? "fp16" : "fp32";
}

}  // namespace vlmtrain::gpu
