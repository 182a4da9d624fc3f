#pragma once

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::memory {

/// Bytes per second of copies between page-locked host memory and a GPU.
struct HostLinkSpeed {
  double in = 0;    ///< to the GPU
  double out = 0;   ///< to the host
  double both = 0;  ///< in each direction, if both are used at the same time
};

/// Measures the link of a CUDA device with a gigabyte of host memory and one of the GPU, for about a second.
/// On a virtual GPU the result has no meaning. Throws the exceptions of HostArena::allocate(), and c10::Error if
/// the GPU lacks the memory.
HostLinkSpeed measure_host_link(at::Device device);

}  // namespace vlmtrain::memory
