#include "distributed/backends.h"

#include <exception>
#include <string>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/distributed/nccl.h"

namespace vlmtrain::distributed {

namespace {

/// Work that is complete from the beginning.
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

namespace {

constexpr const char* kNcclPluginFile = "libvlmtrain_nccl.so";

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                                    at::Device device) {
  static const Plugin plugin =
      load_plugin(kNcclPluginFile, kNcclPluginVersionSymbol, kNcclPluginVersion, {kMakeNcclBackendSymbol});
  if (plugin.functions.empty()) {
    throw run_error(
        "{}: cannot be loaded, and several GPUs require it ({}); put it next to vlmtrain, and install LibTorch with "
        "CUDA",
        kNcclPluginFile, make_excerpt(plugin.problem, 300));
  }
  auto* const make_backend = reinterpret_cast<MakeNcclBackendFunction*>(plugin.functions.front());
  try {
    return c10::intrusive_ptr<c10d::Backend>::reclaim(
        make_backend(std::move(store).release(), rank, world_size, static_cast<int>(device.index())));
  } catch (const std::exception& error) {
    throw run_error("rank {} cannot connect to the other ranks by NCCL: {}; set NCCL_DEBUG=INFO for details", rank,
                    get_first_line(error.what()));
  }
}

}  // namespace vlmtrain::distributed
