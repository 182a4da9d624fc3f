#pragma once

#include <ATen/core/Tensor.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::image {

inline void check_is_mask(const at::Tensor& mask) {
  VLMTRAIN_CHECK(mask.dim() == 2 && mask.scalar_type() == at::kByte && mask.is_cpu() && mask.numel() > 0,
                 "a mask is uint8 [height, width] on the CPU");
}

}  // namespace vlmtrain::image
