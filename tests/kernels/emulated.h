#pragma once

#include <dlfcn.h>
#include <sys/mman.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/emulation/fibers.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::kernels {

/// Tests of kernels on the CPU: the library of emulated ones is opened, and threads run in the order that the parameter
/// says.
class EmulatedKernelTest : public testing::TestWithParam<emulation::Order> {
 protected:
  static void SetUpTestSuite() {
    setenv("VLMTRAIN_EMULATED_KERNELS", VLMTRAIN_EMULATED_KERNELS, /*overwrite=*/1);
    const auto status = open_kernels(at::kCPU);
    ASSERT_EQ(status.problem, "");
    ASSERT_TRUE(status.failed.empty()) << status.failed.front();
  }
  void SetUp() override { settings().order = GetParam(); }
  void TearDown() override { settings() = {}; }

  /// Of the library; this program has an emulation of its own, for planted faults.
  static emulation::Settings& settings() {
    void* const library = dlopen(VLMTRAIN_EMULATED_KERNELS, RTLD_NOW | RTLD_NOLOAD);
    return *reinterpret_cast<emulation::Settings* (*)()>(dlsym(library, emulation::kSettingsFunction))();
  }
};

/// Of fp32 within 1e-6 of the larger of |wanted| and 1, and of sums of `terms` so many times as far. Of 16 bits one
/// rounding: nearly all are equal, and others, which lie almost in the middle of two, are next to it.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, double terms = 1) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  if (actual.numel() == 0) return;
  const bool is_short = actual.scalar_type() != at::kFloat;
  const double bound = actual.scalar_type() == at::kBFloat16 ? 0x1p-7
                       : actual.scalar_type() == at::kHalf   ? 0x1p-10
                                                             : 1e-6 * terms;
  const at::Tensor exact = expected.to(at::kDouble);
  const at::Tensor error = (actual.to(at::kDouble) - exact).abs() / exact.abs().clamp_min(1);
  EXPECT_LE(error.max().item<double>(), bound) << actual.sizes() << " " << actual.scalar_type();
  EXPECT_FALSE(actual.isnan().any().item<bool>());
  if (!is_short) return;
  EXPECT_LE(actual.ne(expected).sum().item<int64_t>(), 1 + actual.numel() / 50) << actual.scalar_type();
}

inline constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
/// Of rows: odd ones, such that are less than a pack or a warp, and more than a block.
inline constexpr int64_t kOddColumns[] = {1, 31, 33, 4097};

/// Uninitialised memory of `sizes` that takes none until it is written.
inline at::Tensor reserve_tensor(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  return at::from_blob(
      memory, sizes, [bytes](void* pointer) { munmap(pointer, bytes); }, dtype);
}

inline const auto kEveryOrder =
    testing::Values(emulation::Order::kForwards, emulation::Order::kBackwards, emulation::Order::kShuffled);

}  // namespace vlmtrain::kernels
