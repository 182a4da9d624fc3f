#include "distributed/nccl_plugin.h"

#include <exception>
#include <string>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/first_line.h"
#include "vlmtrain/base/plugin.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/distributed/nccl.h"

namespace vlmtrain::distributed {

namespace {

constexpr const char* kNcclPlugin = "libvlmtrain_nccl.so";

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                                    at::Device device) {
  static const Plugin plugin =
      load_plugin(kNcclPlugin, kNcclVersionSymbol, kNcclPluginVersion, {kMakeNcclBackendSymbol});
  if (plugin.functions.empty()) {
    throw run_error(
        "ranks on GPUs add up by NCCL, in {}, which cannot be loaded ({}); it lies beside the program where that is "
        "built, and needs LibTorch's CUDA libraries",
        kNcclPlugin, make_excerpt(plugin.problem, 300));
  }
  auto* const make_backend = reinterpret_cast<MakeNcclBackend*>(plugin.functions.front());
  try {
    return c10::intrusive_ptr<c10d::Backend>::reclaim(
        make_backend(std::move(store).release(), rank, world_size, static_cast<int>(device.index())));
  } catch (const std::exception& error) {
    throw run_error("rank {} cannot reach the others by NCCL: {}; NCCL_DEBUG=INFO says more", rank,
                    get_first_line(error.what()));
  }
}

}  // namespace vlmtrain::distributed
