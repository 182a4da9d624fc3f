#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

#include "vlmtrain/distributed/collectives.h"

namespace vlmtrain::distributed {

/// The backends of a set of ranks.
struct Collectives::Backends {
  c10::intrusive_ptr<c10d::Backend> host{};    ///< for CPU tensors
  c10::intrusive_ptr<c10d::Backend> device{};  ///< for GPU tensors; null until set_device_backends()

  /// Returns the backend for the tensor's device. REQUIRES: it is not null.
  c10d::Backend& select_backend(const at::Tensor& tensor) const { return tensor.is_cpu() ? *host : *device; }
};

/// A backend of one rank without other ranks, like PyTorch's FakeProcessGroup. All work completes
/// at once. Like c10d's own backends, it allocates no memory from PyTorch's allocators in these
/// calls.
class FakeProcessGroup final : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

  const std::string getBackendName() const override { return "fake"; }

  /// Leaves the tensors unchanged.
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  /// Leaves `output` unchanged. REQUIRES: it is a shard of `input`.
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  /// Fills `output` with copies of `input`, or leaves it unchanged if `input` is a shard of it.
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
};

/// Creates this rank's NCCL backend with the plug-in libvlmtrain_nccl.so. Returns once all
/// `world_size` ranks have called it. `store` connects these ranks. Throws UserError (kFailed) if
/// the plug-in or NCCL is not available. REQUIRES: `device` is a CUDA device.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                                    at::Device device);

}  // namespace vlmtrain::distributed
