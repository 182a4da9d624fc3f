#pragma once

#include "vlmtrain/distributed/collectives.h"
#include "vlmtrain/engine/consensus.h"

namespace vlmtrain::distributed {

/// What the ranks of a run agree on, over what they tell each other, which has to outlive it.
class RankConsensus final : public engine::Consensus {
 public:
  explicit RankConsensus(Collectives& ranks) : ranks_(ranks) {}

  engine::Verdict worst(engine::Verdict own) const override;
  bool any(bool own) const override;
  std::vector<double> sum(std::vector<double> own) const override;
  void add_up(const at::Tensor& own) const override;
  void add_up_parts(const at::Tensor& all) const override { ranks_.begin_sum_of_parts(all); }
  void finish() const override { ranks_.finish_sums(); }
  void gather_parts(const at::Tensor& all) const override { ranks_.begin_gather(all); }
  void finish_gather() const override { ranks_.finish_gather(); }
  std::vector<int64_t> together(std::vector<int64_t> own) const override;
  std::vector<std::string> each(std::string own) const override { return ranks_.each(own); }

 private:
  Collectives& ranks_;
};

}  // namespace vlmtrain::distributed
