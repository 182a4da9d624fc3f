// The plug-in libvlmtrain_nccl.so: makes c10d's NCCL backend available to a program that is not
// linked with NCCL. Not tested on a GPU; tests/distributed/nccl_test.cpp tests that it compiles,
// links and loads.
#define USE_DISTRIBUTED
#define USE_C10D_NCCL

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <chrono>
#include <cstdlib>

#include "vlmtrain/distributed/nccl.h"

namespace {

/// Effectively no timeout: the rank monitor detects lost ranks (distributed/rank_monitor.h), and a
/// slow collective is not an error.
constexpr auto kCollectiveTimeout = std::chrono::hours(24);

/// Disables c10d's watchdog. After an error of NCCL or the GPU it would end the process before
/// vlmtrain has collected the reason of the first failure. Does not overwrite variables that the
/// user has set.
void disable_c10d_watchdog() {
  for (const char* const variable : {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING",
                                     "TORCH_NCCL_RETHROW_CUDA_ERRORS", "TORCH_NCCL_DUMP_ON_TIMEOUT"}) {
    setenv(variable, "0", /*overwrite=*/0);
  }
}

}  // namespace

#define VLMTRAIN_EXPORTED extern "C" __attribute__((visibility("default")))

/// Returns the version of the plug-in's interface, which the program compares with its own.
VLMTRAIN_EXPORTED int vlmtrain_nccl_version() {
  return vlmtrain::distributed::kNcclPluginVersion;
}

/// Returns a new NCCL backend that the caller owns. Takes ownership of one reference to `store`.
/// Blocks until all ranks have called it.
VLMTRAIN_EXPORTED c10d::Backend* vlmtrain_make_nccl_backend(c10d::Store* store, int rank, int world_size,
                                                            int device_index) {
  disable_c10d_watchdog();
  // Reductions get a stream of high priority, because the next bucket and the end of the step wait
  // for them.
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = kCollectiveTimeout;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::intrusive_ptr<c10d::Store>::reclaim(store), rank,
                                                           world_size, options);
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(device_index));
  group->setBoundDeviceId(device);
  group->eagerConnectSingleDevice(device);
  return group.release();
}
