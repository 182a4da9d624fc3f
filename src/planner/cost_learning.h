#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "vlmtrain/planner/cost_table.h"
#include "vlmtrain/planner/cut_plan.h"
#include "vlmtrain/planner/rehearsal.h"

namespace vlmtrain::planner {

using SampleSet = std::vector<data::SampleShape>;

/// Rehearses sets of samples, and whole steps, of one job with the same choices.
class SetRehearsal {
 public:
  SetRehearsal() = default;
  virtual ~SetRehearsal() = default;
  SetRehearsal(const SetRehearsal&) = delete;
  SetRehearsal& operator=(const SetRehearsal&) = delete;

  /// The peak of a step of two micro-batches that are this set each, from an empty cache.
  virtual std::vector<int64_t> bytes_of(const std::vector<SampleSet>& sets) = 0;

  struct Steps {
    StepPeaks peaks;                   ///< over all
    std::vector<double> seconds;       ///< predicted, of each; empty where nothing predicts
    double seconds_beside_passes = 0;  ///< of these in each: the optimizer, waiting for other ranks
  };
  /// Steps one after another, as a run does them.
  virtual Steps run(const std::vector<SampleSet>& steps, const std::vector<engine::Cut>& cuts) = 0;
};

struct RehearsedSet {
  SetSizes sizes;
  int64_t bytes = 0;
};

/// `like` with weights by which no rehearsed set takes more than the table says where it counts: around the limit, from
/// where the sets take a good part of what there is for activations to a little beyond. Non-negative least squares,
/// raised by the largest error. REQUIRES: sets are not empty.
CostTable fitted(CostTable like, const std::vector<RehearsedSet>& sets);

/// The samples that a cut has to serve.
struct CutQuestion {
  std::vector<SampleSet> drawn;    ///< samples of steps as a run draws them; at least one
  std::vector<SampleSet> largest;  ///< steps of the largest samples
  CostTable like;                  ///< all but the weights; its limit is the plan's
};

/// Learns a table: rehearses single samples and small sets of the drawn and the largest ones, fits, cuts the drawn
/// steps by the fit, rehearses the micro-batches that are most at the limit, fits again, and so on; at last drawn steps
/// one after another with the largest between them, of each no more than some of its micro-batches. Where these reserve
/// more than the limit, since changing sizes fragment memory, the table's limit is lowered by as much. Deterministic.
CutPlan learn_cut(SetRehearsal& rehearsal, const CutQuestion& question);

}  // namespace vlmtrain::planner
