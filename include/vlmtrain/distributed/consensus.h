#pragma once

#include "vlmtrain/distributed/collectives.h"
#include "vlmtrain/engine/gradients/consensus.h"

namespace vlmtrain::distributed {

/// The engine's collectives over the ranks of a run. REQUIRES: `collectives` outlives it.
class RankConsensus final : public engine::Consensus {
 public:
  explicit RankConsensus(Collectives& collectives) : collectives_(collectives) {}

  engine::StepStatus all_reduce_max(engine::StepStatus status) const override;
  bool any_rank(bool value) const override;
  std::vector<double> sum_over_ranks(std::vector<double> values) const override;
  void all_reduce_sum(const at::Tensor& tensor) const override;
  void reduce_scatter(const at::Tensor& tensor) const override { collectives_.reduce_scatter_async(tensor); }
  void all_reduce_replicas(const at::Tensor& tensor) const override { collectives_.all_reduce_replicas_async(tensor); }
  void all_reduce_group(const at::Tensor& tensor) const override { collectives_.all_reduce_group_async(tensor); }
  void wait_for_reductions() const override { collectives_.wait_for_reductions(); }
  engine::AllGatherHandle all_gather_async(const at::Tensor& tensor) const override {
    return collectives_.all_gather_async(tensor);
  }
  engine::AllGatherHandle all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input) const override {
    return collectives_.all_gather_async(output, input);
  }
  void wait_for_all_gather(engine::AllGatherHandle ticket) const override { collectives_.wait_for_all_gather(ticket); }
  std::vector<int64_t> union_over_ranks(std::vector<int64_t> values) const override;
  std::vector<std::string> all_gather_strings(std::string text) const override {
    return collectives_.all_gather_strings(text);
  }

 private:
  Collectives& collectives_;
};

}  // namespace vlmtrain::distributed
