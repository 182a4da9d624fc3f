#include "vlmtrain/planner/memory_limit.h"

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::planner {

namespace {

// NCCL's buffers. Per channel and peer, it allocates 512 KiB, 4.7 MiB and 4 MiB for the protocols
// LL, LL128 and Simple (NCCL's init.cc). A rank has two peers in a ring. The number of channels
// depends on the links; 16 is common within a machine. Not measured.
constexpr int64_t kNcclBytesPerChannelAndPeer = 9'650'000;
constexpr int64_t kNumNcclChannels = 16;
constexpr int64_t kNumRingPeers = 2;

/// Memory of oneDNN primitives, MKL buffers, stacks, and small objects of the autograd graph.
/// Measured: docs/memory.md, "On the CPU".
constexpr int64_t kLibraryBytes = 200'000'000;

constexpr double kBytesPerGigabyte = 1e9;

/// Sets the memory that a process may use on a GPU, and the overhead.
void set_usage(const TargetGpu& target, int64_t world_size, MemoryLimit& limit) {
  limit.allowed_bytes = std::max<int64_t>(0, target.memory_bytes - target.other_process_bytes);
  limit.context_bytes = target.context_bytes;
  if (world_size > 1) limit.communication_bytes = kNcclBytesPerChannelAndPeer * kNumNcclChannels * kNumRingPeers;
}

/// Sets the memory that a process may use on a host.
void set_usage(const TargetHost& target, int64_t /*world_size*/, MemoryLimit& limit) {
  limit.allowed_bytes = target.available_memory.bytes;
  limit.limit_source = target.available_memory.limit_source;
}

void set_host_overhead(const HostMemoryRequirements& requirements, MemoryLimit& limit) {
  limit.process_bytes = requirements.process_bytes;
  // Loader threads skip the samples of other ranks. Meanwhile, such a sample occupies a slot of the
  // queue.
  const int64_t num_skipped_samples = requirements.world_size > 1 ? requirements.num_loader_threads : 0;
  // The loader prefetches at most two steps.
  limit.prefetch_bytes =
      std::min((2 * requirements.samples_per_step + num_skipped_samples) * requirements.largest_sample_bytes,
               compute_prefetch_bytes(limit.allowed_bytes, requirements.process_bytes));
  limit.decoded_samples_bytes =
      limit.prefetch_bytes + requirements.samples_per_step * requirements.largest_sample_bytes +
      requirements.num_loader_threads * (requirements.largest_sample_bytes + requirements.decode_bytes);
  limit.library_bytes = kLibraryBytes;
}

}  // namespace

double get_margin_percent(MemoryMode mode) {
  switch (mode) {
    // The values are documented in memory.mode. Chosen without measurement.
    case MemoryMode::kConservative:
      return 10;
    case MemoryMode::kBalanced:
      return 5;
    case MemoryMode::kAggressive:
      return 2;
  }
  throw InternalError("unknown memory mode");
}

MemoryLimit compute_memory_limit(const PlanTarget& target, MemoryMode mode, std::optional<double> limit_gigabytes,
                                 int64_t world_size) {
  MemoryLimit limit;
  std::visit([&](const auto& device) { set_usage(device, world_size, limit); }, target);
  const auto* const host = std::get_if<TargetHost>(&target);
  if (limit_gigabytes && *limit_gigabytes * kBytesPerGigabyte < static_cast<double>(limit.allowed_bytes)) {
    limit.allowed_bytes = static_cast<int64_t>(*limit_gigabytes * kBytesPerGigabyte);
    if (host != nullptr) limit.limit_source = keys::memory::kLimitGb;
  }
  limit.margin_percent = get_margin_percent(mode);
  limit.margin_bytes = std::llround(static_cast<double>(limit.allowed_bytes) * limit.margin_percent / 100);
  if (host != nullptr) set_host_overhead(host->requirements, limit);
  limit.limit_bytes = std::max<int64_t>(0, limit.allowed_bytes - limit.margin_bytes - limit.overhead_bytes());
  return limit;
}

int64_t compute_prefetch_bytes(int64_t limit_bytes, int64_t used_bytes) {
  // A quarter leaves most of the free memory for tensors. Chosen without measurement.
  constexpr int64_t kPrefetchMemoryDivisor = 4;
  return std::max<int64_t>(1, (limit_bytes - used_bytes) / kPrefetchMemoryDivisor);
}

}  // namespace vlmtrain::planner
