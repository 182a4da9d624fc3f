#pragma once

#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::kernels {

/// With VLMTRAIN_EMULATED_KERNELS a whole program of tests computes with our own kernels, emulated on the CPU.
class EnvironmentOfKernels : public testing::Environment {
 public:
  void SetUp() override {
    if (std::getenv("VLMTRAIN_EMULATED_KERNELS") == nullptr) return;
    const auto opened = open_kernels(at::kCPU);
    ASSERT_EQ(opened.problem, "");
    ASSERT_TRUE(opened.wrong.empty()) << opened.wrong.front();
  }
};

}  // namespace vlmtrain::kernels
