#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/image/size.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::kernels {

/// Of a trial's inputs.
struct KernelTestSizes {
  int64_t rows = 5;
  std::vector<int64_t> columns{64, 33};  ///< such that are read in packs, and such that are not
  int64_t super_blocks = 3;              ///< of NF4
  int64_t parameters = 300;              ///< that AdamW moves
  image::ImageSize image_size{33, 48};
};

/// What a kernel made, and what it should have made (reference.h).
struct ComparedTensors {
  at::Tensor actual, expected;
};

/// Of random inputs, the same on every device. REQUIRES: the kernel is there on this device.
std::vector<ComparedTensors> run_kernel_test(Kernel kernel, at::Device device, at::ScalarType dtype,
                                             const KernelTestSizes& sizes = {});

struct FailedKernelTest {
  Kernel kernel;
  std::string description;
};

/// Each kernel that has() beside ATen's operations on small random inputs, in fp32 and, from sm_80 on, bf16; those that
/// differ by more than rounding, or cannot be started. Gives the memory for it back.
std::vector<FailedKernelTest> find_failed_kernels(at::Device device);

}  // namespace vlmtrain::kernels
