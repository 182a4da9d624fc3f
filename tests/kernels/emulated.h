#pragma once

#include <dlfcn.h>
#include <sys/mman.h>

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/emulation/fibers.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::kernels {

/// A test of kernels on the CPU. It opens the library of emulated kernels; threads run in the order
/// of the parameter.
class EmulatedKernelTest : public testing::TestWithParam<emulation::ThreadOrder> {
 protected:
  static void SetUpTestSuite() {
    setenv("VLMTRAIN_EMULATED_KERNELS", VLMTRAIN_EMULATED_KERNELS, /*overwrite=*/1);
    const auto status = open_kernels(at::kCPU);
    ASSERT_EQ(status.unavailable_reason, "");
    ASSERT_TRUE(status.failure_messages.empty()) << status.failure_messages.front();
  }
  void SetUp() override { settings().order = GetParam(); }
  void TearDown() override { settings() = {}; }

  /// Returns the library's settings. The test program has an emulation of its own for planted
  /// faults.
  static emulation::EmulationSettings& settings() {
    void* const library = dlopen(VLMTRAIN_EMULATED_KERNELS, RTLD_NOW | RTLD_NOLOAD);
    return *reinterpret_cast<emulation::EmulationSettings* (*)()>(
        dlsym(library, emulation::kEmulationSettingsSymbol))();
  }
};

/// Checks that fp32 values are within 1e-6 of max(|expected|, 1), times `terms` for sums of so many
/// terms. 16-bit values must have one rounding: almost all are equal, and values near a midpoint
/// are adjacent.
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
/// Row lengths: odd, smaller than a pack or a warp, and larger than a block.
inline constexpr int64_t kOddColumns[] = {1, 31, 33, 4097};

/// Returns an uninitialized tensor whose pages are allocated when they are written.
inline at::Tensor reserve_tensor(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  return at::from_blob(
      memory, sizes, [bytes](void* pointer) { munmap(pointer, bytes); }, dtype);
}

inline const auto kEveryOrder = testing::Values(emulation::ThreadOrder::kForwards, emulation::ThreadOrder::kBackwards,
                                                emulation::ThreadOrder::kShuffled);

}  // namespace vlmtrain::kernels
