#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>
#include <vector>

namespace vlmtrain::distributed {

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

}  // namespace vlmtrain::distributed
