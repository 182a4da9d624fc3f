#include "planner/host_cut.h"

#include <algorithm>
#include <utility>

#include "planner/cost_learning.h"
#include "planner/host_rehearsal.h"
#include "vlmtrain/planner/drawn_steps.h"

namespace vlmtrain::planner {

namespace {

class HostSets final : public SetRehearsal {
 public:
  HostSets(const Job& job, Choices choices, PlanningEffort& effort)
      : rehearsal_(job), choices_(std::move(choices)), effort_(effort) {}

  std::vector<int64_t> bytes_of(const std::vector<SampleSet>& sets) override {
    std::vector<int64_t> bytes;
    bytes.reserve(sets.size());
    // The first step of a run makes the optimizer's states.
    if (!std::exchange(has_states_, true)) step(sets.front(), engine::cut_in_order({std::ssize(sets.front())}));
    for (const SampleSet& set : sets)
      bytes.push_back(step(set, engine::cut_in_order({std::ssize(set)})).reserved_bytes);
    return bytes;
  }

  Steps run(const std::vector<SampleSet>& steps, const std::vector<engine::Cut>& cuts) override {
    Steps found;
    for (size_t i = 0; i < steps.size(); ++i) {
      const StepPeaks peaks = step(steps[i], cuts[i]);
      if (peaks.reserved_bytes > found.peaks.reserved_bytes) found.peaks = peaks;
    }
    return found;
  }

 private:
  StepPeaks step(const SampleSet& samples, engine::Cut cut) {
    engine::StepLayout layout = layout_of(choices_, samples);
    layout.cut = std::move(cut);
    const Outcome outcome = rehearsal_.step(layout, groups_of(samples));
    ++effort_.rehearsals;
    effort_.rehearsal_seconds += outcome.seconds;
    return outcome.peaks();
  }

  HostRehearsal rehearsal_;
  Choices choices_;
  PlanningEffort& effort_;
  bool has_states_ = false;
};

}  // namespace

void plan_cut_on_host(const HostPlanRequest& request, HostPlan& plan) {
  const Workload& workload = request.workload;
  if (request.fixed.micro_batch_size || workload.drawn.empty()) return;
  const int64_t most = std::min(request.largest_micro_batch, workload.samples_per_rank());
  if (plan.choices.micro_batch_size >= most && !workload.packed) return;
  const CutQuestion question{.drawn = drawn_steps(workload),
                             .largest = worst_steps(workload),
                             .like = {.vision_tiles_per_pass = plan.choices.vision_tiles_per_pass,
                                      .loss_chunk_rows = plan.choices.loss_chunk_rows,
                                      .limit_bytes = plan.limit.tensor_bytes,
                                      .most_samples = request.largest_micro_batch}};
  HostSets sets(request.job, plan.choices, plan.effort);
  plan.cut = learn_cut(sets, question);
  if (plan.cut->peaks.reserved_bytes <= plan.needed_bytes()) return;
  plan.peak_bytes = plan.cut->peaks.allocated_bytes;
  plan.kept_bytes = plan.cut->peaks.reserved_bytes - plan.cut->peaks.allocated_bytes;
}

}  // namespace vlmtrain::planner
