#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace vlmtrain::distributed {

/// This rank's end of NCCL, by the plug-in libvlmtrain_nccl.so. Returns once all ranks have called it. Throws UserError
/// (kFailed) where there is no plug-in, or NCCL does not come about.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                                    at::Device device);

}  // namespace vlmtrain::distributed
