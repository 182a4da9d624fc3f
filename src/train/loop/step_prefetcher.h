#pragma once

#include <cstdint>
#include <deque>
#include <exception>

#include "train/balance.h"
#include "train/step/look_ahead_client.h"
#include "train/step/step.h"
#include "vlmtrain/data/loader.h"

namespace vlmtrain::train {

/// Draws the batches of a run, with a twin some steps ahead of their turn, so that it can rehearse them.
class StepPrefetcher {
 public:
  /// Steps first_step … last_step. `look_ahead` may be null.
  StepPrefetcher(data::Loader& loader, const planner::StepConfig& step_config, const TaskBalance& tasks,
                 LookAheadClient* look_ahead, int64_t first_step, int64_t last_step);

  /// The next step. `step_seconds`: what the steps so far took. Rethrows what the loader threw, in its turn.
  PlannedStep next(double step_seconds);

  /// Takes samples, by their index, out of the step that next() gave last and puts the next usable ones of the order in
  /// their place, of all processes alike;
  /// the following steps begin behind that one. The step is then done as planned, whatever was foreseen, and so are
  /// those that a twin has been told of already. Rethrows what the loader threw.
  void replace(PlannedStep& step, const std::vector<int64_t>& dropped);

 private:
  struct PrefetchedStep {
    data::GlobalBatch batch;
    std::vector<data::SampleShape> shapes;
    engine::StepLayout layout;
    std::exception_ptr error;
  };

  /// Returns how long it waited for the loader.
  double fill_queue();
  engine::StepLayout make_layout(data::GlobalBatch& batch, const std::vector<data::SampleShape>& shapes) const;

  data::Loader& loader_;
  planner::StepConfig step_config_;
  const TaskBalance& tasks_;
  LookAheadClient* look_ahead_;
  int64_t next_step_;
  int64_t last_step_;
  int64_t last_submitted_ = 0;        // the last step that the twin was told of
  int64_t last_outdated_ = 0;         // up to this step, it was told of other samples
  std::deque<PrefetchedStep> queue_;  // from next_step_ on
};

}  // namespace vlmtrain::train
