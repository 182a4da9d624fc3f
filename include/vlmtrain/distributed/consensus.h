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
  void add_up_copies(const at::Tensor& own) const override { ranks_.begin_sum_of_copies(own); }
  void add_up_in_group(const at::Tensor& own) const override { ranks_.begin_sum_in_group(own); }
  void finish() const override { ranks_.finish_sums(); }
  engine::GatherTicket gather_parts(const at::Tensor& all) const override { return ranks_.begin_gather(all); }
  engine::GatherTicket gather_into(const at::Tensor& all, const at::Tensor& own) const override {
    return ranks_.begin_gather(all, own);
  }
  void finish_gather(engine::GatherTicket ticket) const override { ranks_.finish_gather(ticket); }
  std::vector<int64_t> together(std::vector<int64_t> own) const override;
  std::vector<std::string> each(std::string own) const override { return ranks_.each(own); }

 private:
  Collectives& ranks_;
};

}  // namespace vlmtrain::distributed
