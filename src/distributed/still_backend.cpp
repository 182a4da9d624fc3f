#include "distributed/still_backend.h"

namespace vlmtrain::distributed {

namespace {

class Done final : public c10d::Work {
 public:
  Done() { finish(); }

  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

}  // namespace

c10::intrusive_ptr<c10d::Work> StillBackend::allreduce(std::vector<at::Tensor>& /*tensors*/,
                                                       const c10d::AllreduceOptions& /*options*/) {
  return c10::make_intrusive<Done>();
}

c10::intrusive_ptr<c10d::Work> StillBackend::_reduce_scatter_base(at::Tensor& /*own*/, at::Tensor& /*all*/,
                                                                  const c10d::ReduceScatterOptions& /*options*/) {
  return c10::make_intrusive<Done>();
}

c10::intrusive_ptr<c10d::Work> StillBackend::_allgather_base(at::Tensor& all, at::Tensor& own,
                                                             const c10d::AllgatherOptions& /*options*/) {
  if (own.is_alias_of(all)) return c10::make_intrusive<Done>();
  all.view({getSize(), own.numel()}).copy_(own.view({1, own.numel()}).expand({getSize(), own.numel()}));
  return c10::make_intrusive<Done>();
}

}  // namespace vlmtrain::distributed
