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
  c10::intrusive_ptr<c10d::Backend> host{};
  c10::intrusive_ptr<c10d::Backend> device{};

  c10d::Backend& select(const at::Tensor& tensor) const { return tensor.is_cpu() ? *host : *device; }
};

/// A backend of one rank whose other ranks do not exist, like PyTorch's FakeProcessGroup. Every
/// rank is assumed to have this rank's values; sums stay as they are, and all work completes at once.
/// Allocates no memory, as c10d's own backends allocate none of PyTorch's for these calls.
class FakeProcessGroup final : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

  const std::string getBackendName() const override { return "fake"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  /// Leaves `output` unchanged. REQUIRES: it is a shard of `input`.
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  /// Fills `output` with copies of `input`, or leaves it unchanged if `input` is a shard of it.
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
};

/// Creates this rank's NCCL backend with the plug-in libvlmtrain_nccl.so. Returns once all ranks have
/// called it. Throws UserError (kFailed) if the plug-in or NCCL is not available.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                                    at::Device device);

}  // namespace vlmtrain::distributed
