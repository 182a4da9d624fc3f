#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "vlmtrain/base/error.h"
#include "vlmtrain/distributed/collectives.h"
#include "vlmtrain/distributed/launch.h"
#include "vlmtrain/engine/gradients/consensus.h"

namespace vlmtrain::distributed {

/// The ranks of a run, connected by PyTorch's TCPStore on rank 0 and by Gloo. If another rank is
/// lost during a collective, the collective throws a UserError with the code and reason of the
/// first failure, within seconds.
///
/// REQUIRES: all ranks make the same calls in the same order, each from one thread.
/// report_failure() and has_lost_rank0() are exceptions: any rank may call them, from any thread.
class DistributedContext {
 public:
  /// Waits until all other ranks are connected. Throws UserError: kUsage if the port is in use or
  /// no server listens there; kFailed with the numbers of the missing ranks if some do not connect
  /// in time.
  explicit DistributedContext(const LaunchInfo& launch_info, const DistributedContextOptions& options = {});
  /// Waits some seconds for the destructors of the other ranks, unless a rank failed.
  ~DistributedContext();
  DistributedContext(const DistributedContext&) = delete;
  DistributedContext& operator=(const DistributedContext&) = delete;

  const LaunchInfo& launch_info() const { return launch_info_; }
  int64_t rank() const { return launch_info_.rank; }
  int64_t world_size() const { return launch_info_.world_size; }

  /// Returns the ranks' collectives. Before connect_device(), they accept only CPU tensors and
  /// strings.
  Collectives& collectives();
  const Collectives& collectives() const;

  /// Shards over groups of `count` consecutive ranks instead of over all ranks. Ranks with the same
  /// index in different groups are replicas. REQUIRES: `count` divides world_size(); called at most
  /// once, before connect_device().
  void set_shard_group_size(int64_t count);

  /// Enables collectives on tensors of a GPU. Uses NCCL (distributed/nccl.h), or FakeProcessGroup
  /// on a virtual GPU. Allocates GPU memory. Throws UserError (kFailed) if NCCL is not available.
  void connect_device(at::Device device);

  /// Reports to the other ranks that this rank has failed. The first report of all ranks counts.
  /// Returns once the failure is published, or after a timeout. Thread-safe.
  void report_failure(ExitCode code, const std::string& reason);
  /// Returns whether this rank has detected the loss of rank 0. Thread-safe.
  bool has_lost_rank0() const;

 private:
  class Impl;

  LaunchInfo launch_info_;
  std::unique_ptr<Impl> impl_;
};

/// The implementation of engine::Consensus, which documents the functions, over the ranks of a run.
/// REQUIRES: `collectives` outlives this object.
class RankConsensus final : public engine::Consensus {
 public:
  explicit RankConsensus(Collectives& collectives) : collectives_(collectives) {}

  engine::StepStatus all_reduce_max(engine::StepStatus status) const override;
  bool any_rank(bool value) const override;
  std::vector<double> sum_over_ranks(std::vector<double> values) const override;
  void all_reduce_sum_async(const at::Tensor& tensor) const override;
  void reduce_scatter_async(const at::Tensor& tensor) const override { collectives_.reduce_scatter_async(tensor); }
  void all_reduce_replicas_async(const at::Tensor& tensor) const override {
    collectives_.all_reduce_replicas_async(tensor);
  }
  void all_reduce_group_async(const at::Tensor& tensor) const override { collectives_.all_reduce_group_async(tensor); }
  void wait_for_reductions() const override { collectives_.wait_for_reductions(); }
  engine::AllGatherHandle all_gather_async(const at::Tensor& tensor) const override {
    return collectives_.all_gather_async(tensor);
  }
  engine::AllGatherHandle all_gather_into_tensor_async(const at::Tensor& output,
                                                       const at::Tensor& input) const override {
    return collectives_.all_gather_async(output, input);
  }
  void wait_for_all_gather(engine::AllGatherHandle handle) const override { collectives_.wait_for_all_gather(handle); }
  std::vector<int64_t> union_over_ranks(std::vector<int64_t> values) const override;
  std::vector<std::string> all_gather_strings(std::string text) const override {
    return collectives_.all_gather_strings(text);
  }

 private:
  Collectives& collectives_;
};

}  // namespace vlmtrain::distributed
