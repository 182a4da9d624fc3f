#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/writing_gate.h"
#include "vlmtrain/data/loader.h"
#include "vlmtrain/distributed/consensus.h"
#include "vlmtrain/distributed/ranks.h"
#include "vlmtrain/engine/consensus.h"

namespace vlmtrain::train {

/// The processes that a run consists of, of which this is one: by itself, or a rank among others. All ranks hold the
/// same weights, order and ledger; rank 0 writes.
class RunRanks {
 public:
  /// Nothing: by itself. Else waits for the others; errors as distributed::Ranks.
  explicit RunRanks(const std::optional<distributed::Launch>& launch,
                    std::chrono::milliseconds to_meet = distributed::RanksSettings().to_meet);

  bool is_alone() const { return ranks_ == nullptr; }
  /// Whether this process writes what the run leaves behind.
  bool writes() const { return is_alone() || ranks_->rank() == 0; }
  int64_t rank() const { return is_alone() ? 0 : ranks_->rank(); }
  int64_t world_size() const { return is_alone() ? 1 : ranks_->world_size(); }
  int64_t on_this_machine() const { return on_this_machine_; }
  int64_t machines() const { return machines_; }
  /// As many on each machine, consecutively numbered. Throws UserError (kUsage) where they are not so. The variable
  /// VLMTRAIN_RANKS_OF_A_NODE counts instead of host names, so that groups can be tried on one machine.
  int64_t ranks_of_a_node() const;
  const engine::Consensus& consensus() const { return *consensus_; }
  data::LoaderShare loader_share() const;

  /// Calls `act` on rank 0, then on all others, so that they find what it has left behind.
  void in_turn(const std::function<void()>& act) const;
  /// Throws UserError (kUsage) in all ranks, which names those that have another text than rank 0.
  void check_same(const std::string& what, const std::string& own) const;

  /// As distributed::Ranks; nothing for a process by itself.
  void share_in_groups_of(int64_t count) const;

  /// From now on gradients on `device` can be added up. Throws UserError in all ranks where they are not on devices of
  /// one kind, or two have the same card; errors of distributed::Ranks::connect.
  void connect(at::Device device) const;

  /// Held while a checkpoint is written, by whatever thread gives it back: a lost rank does not end this process
  /// meanwhile, for some minutes. One at a time.
  [[nodiscard]] WritingGate::Pass while_writing() const { return writing_.pass(); }

  /// Whether any rank is asked to stop; each tells how long it has waited for the others.
  bool any_stops(bool own) const;
  /// Seconds by rank, as any_stops() was told last; empty for a process by itself.
  const std::vector<double>& waited_seconds() const { return waited_seconds_; }
  /// Which rank the others wait for, for people; empty for a process by itself.
  std::string waiting_words() const;

  /// What ranks have told each other in so many steps, for people; empty for a process by itself.
  std::string traffic_words(int64_t steps) const;

  /// Whether the sums of the steps so far are there: not on a GPU where a rank was lost in the middle of one.
  bool are_sums_done() const;

  /// Calls `act`; what it throws is told to the other ranks, and is thrown again: SaidElsewhere where rank 0 tells it.
  void telling_failures(const std::function<void()>& act) const;

 private:
  void refuse_shared_card(const std::string& own) const;

  mutable WritingGate writing_;
  std::unique_ptr<distributed::Ranks> ranks_;
  std::unique_ptr<engine::Consensus> consensus_;
  mutable std::vector<double> waited_seconds_;  // by rank
  std::vector<std::string> hosts_;              // by rank
  int64_t on_this_machine_ = 1;
  int64_t machines_ = 1;
};

}  // namespace vlmtrain::train
