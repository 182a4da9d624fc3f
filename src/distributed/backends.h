#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

#include "vlmtrain/distributed/collectives.h"

namespace vlmtrain::distributed {

struct Collectives::Backends {
  c10::intrusive_ptr<c10d::Backend> host{};
  c10::intrusive_ptr<c10d::Backend> device{};

  c10d::Backend& select(const at::Tensor& tensor) const { return tensor.is_cpu() ? *host : *device; }
};

/// One rank's end of a group whose other ranks are not there. Nothing is moved: every rank is taken to have what this
/// one has, a sum stays as it is, and all is done at once. Takes no memory, as c10d's own backends take none of
/// PyTorch's allocator for these calls.
class FakeProcessGroup final : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

  const std::string getBackendName() const override { return "fake"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  /// `output` stays as it is: its place is within `input`.
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  /// `output` becomes what this rank has, once for each rank; where that is a part of `output`, it stays as it is.
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
};

/// This rank's end of NCCL, by the plug-in libvlmtrain_nccl.so. Returns once all ranks have called it. Throws UserError
/// (kFailed) where there is no plug-in, or NCCL does not come about.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                                    at::Device device);

}  // namespace vlmtrain::distributed
