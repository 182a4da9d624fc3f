// Not tested on a GPU: it compiles, links and loads (tests/distributed/nccl_test.cpp).
#define USE_DISTRIBUTED
#define USE_C10D_NCCL

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <chrono>
#include <cstdlib>

#include "vlmtrain/distributed/nccl.h"

namespace {

/// The rank monitor detects lost ranks (distributed/rank_monitor.h); the duration of a call says
/// nothing about them.
constexpr auto kCollectiveTimeout = std::chrono::hours(24);

/// c10d's watchdog would end the process at an error of NCCL or the GPU before the first failure's
/// reason is known here. Variables that the user has set stay.
void disable_c10d_watchdog() {
  for (const char* const variable : {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING",
                                     "TORCH_NCCL_RETHROW_CUDA_ERRORS", "TORCH_NCCL_DUMP_ON_TIMEOUT"}) {
    setenv(variable, "0", /*overwrite=*/0);
  }
}

}  // namespace

#define VLMTRAIN_EXPORTED extern "C" __attribute__((visibility("default")))

VLMTRAIN_EXPORTED int vlmtrain_nccl_version() {
  return vlmtrain::distributed::kNcclPluginVersion;
}

VLMTRAIN_EXPORTED c10d::Backend* vlmtrain_make_nccl_backend(c10d::Store* store, int rank, int world_size,
                                                            int device_index) {
  disable_c10d_watchdog();
  // High priority for reductions: the next bucket and the end of the step wait for them.
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = kCollectiveTimeout;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::intrusive_ptr<c10d::Store>::reclaim(store), rank,
                                                           world_size, options);
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(device_index));
  group->setBoundDeviceId(device);
  group->eagerConnectSingleDevice(device);
  return group.release();
}
