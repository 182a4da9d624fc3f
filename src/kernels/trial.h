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
struct TrialSizes {
  int64_t rows = 5;
  std::vector<int64_t> columns{64, 33};  ///< such that are read in packs, and such that are not
  int64_t super_blocks = 3;              ///< of NF4
  int64_t parameters = 300;              ///< that AdamW moves
  image::ImageSize picture{33, 48};
};

/// What a kernel made, and what it should have made (reference.h).
struct Compared {
  at::Tensor made, wanted;
};

/// Of random inputs, the same on every device. REQUIRES: the kernel is there on this device.
std::vector<Compared> try_kernel(Kernel kernel, at::Device device, at::ScalarType dtype, const TrialSizes& sizes = {});

struct FailedTrial {
  Kernel kernel;
  std::string how;
};

/// Each kernel that has() beside ATen's operations on small random inputs, in fp32 and, from sm_80 on, bf16; those that
/// differ by more than rounding, or cannot be started. Gives the memory for it back.
std::vector<FailedTrial> failed_trials(at::Device device);

}  // namespace vlmtrain::kernels
