#pragma once

#include "vlmtrain/distributed/ranks.h"
#include "vlmtrain/engine/consensus.h"

namespace vlmtrain::distributed {

/// What the ranks of a run agree on, over Ranks, which has to outlive it. On the CPU.
class RankConsensus final : public engine::Consensus {
 public:
  explicit RankConsensus(Ranks& ranks) : ranks_(ranks) {}

  engine::Verdict worst(engine::Verdict own) const override;
  bool any(bool own) const override;
  std::vector<double> sum(std::vector<double> own) const override;
  void add_up(const at::Tensor& own) const override;
  void finish() const override { ranks_.finish_sums(); }
  std::vector<int64_t> together(std::vector<int64_t> own) const override;
  std::vector<std::string> each(std::string own) const override { return ranks_.each(own); }

 private:
  Ranks& ranks_;
};

}  // namespace vlmtrain::distributed
