#include "distributed/still_backend.h"

namespace vlmtrain::distributed {

namespace {

class CompletedWork final : public c10d::Work {
 public:
  CompletedWork() { finish(); }

  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

}  // namespace

c10::intrusive_ptr<c10d::Work> FakeProcessGroup::allreduce(std::vector<at::Tensor>& /*tensors*/,
                                                           const c10d::AllreduceOptions& /*options*/) {
  return c10::make_intrusive<CompletedWork>();
}

c10::intrusive_ptr<c10d::Work> FakeProcessGroup::_reduce_scatter_base(at::Tensor& /*own*/, at::Tensor& /*all*/,
                                                                      const c10d::ReduceScatterOptions& /*options*/) {
  return c10::make_intrusive<CompletedWork>();
}

c10::intrusive_ptr<c10d::Work> FakeProcessGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                                 const c10d::AllgatherOptions& /*options*/) {
  if (input.is_alias_of(output)) return c10::make_intrusive<CompletedWork>();
  output.view({getSize(), input.numel()}).copy_(input.view({1, input.numel()}).expand({getSize(), input.numel()}));
  return c10::make_intrusive<CompletedWork>();
}

}  // namespace vlmtrain::distributed
