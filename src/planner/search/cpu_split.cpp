#include "planner/search/cpu_split.h"

#include <algorithm>
#include <utility>

#include "planner/dry_run/cpu_dry_run.h"
#include "planner/search/split_plan_learner.h"
#include "vlmtrain/planner/workload.h"

namespace vlmtrain::planner {

namespace {

class CpuMicroBatchDryRun final : public MicroBatchDryRun {
 public:
  CpuMicroBatchDryRun(const Job& job, StepConfig step_config, PlanningEffort& effort)
      : dry_run_(job), step_config_(std::move(step_config)), effort_(effort) {}

  std::vector<int64_t> measure_bytes(const std::vector<SampleShapes>& micro_batches) override {
    std::vector<int64_t> bytes;
    bytes.reserve(micro_batches.size());
    // The first step of a run allocates the optimizer state.
    if (!std::exchange(has_optimizer_state_, true))
      step(micro_batches.front(), engine::split_in_order({std::ssize(micro_batches.front())}));
    for (const SampleShapes& micro_batch : micro_batches)
      bytes.push_back(step(micro_batch, engine::split_in_order({std::ssize(micro_batch)})).reserved_bytes);
    return bytes;
  }

  StepResults run(const std::vector<SampleShapes>& steps, const std::vector<engine::MicroBatchSplit>& splits) override {
    StepResults results;
    for (size_t i = 0; i < steps.size(); ++i) {
      const StepPeaks peaks = step(steps[i], splits[i]);
      if (peaks.reserved_bytes > results.peaks.reserved_bytes) results.peaks = peaks;
    }
    return results;
  }

 private:
  StepPeaks step(const SampleShapes& samples, engine::MicroBatchSplit split) {
    engine::StepLayout layout = make_step_layout(step_config_, samples);
    layout.split = std::move(split);
    const DryRunResult result = dry_run_.step(layout, group_samples(samples));
    ++effort_.num_dry_runs;
    effort_.dry_run_seconds += result.seconds;
    return result.peaks();
  }

  CpuDryRun dry_run_;
  StepConfig step_config_;
  PlanningEffort& effort_;
  bool has_optimizer_state_ = false;
};

}  // namespace

void plan_cpu_split(const CpuPlanRequest& request, CpuPlan& plan) {
  const Workload& workload = request.workload;
  if (request.constraints.micro_batch_size || workload.sampled_steps.empty()) return;
  const int64_t max_micro_batch_size = std::min(request.max_micro_batch_size, workload.samples_per_rank());
  if (plan.step_config.micro_batch_size >= max_micro_batch_size && !workload.packed) return;
  const SplitProblem problem{.sampled_steps = find_heaviest_rank_steps(workload),
                             .worst_steps = make_worst_steps(workload),
                             .initial_table = {.vision_tiles_per_pass = plan.step_config.vision_tiles_per_pass,
                                               .loss_chunk_rows = plan.step_config.loss_chunk_rows,
                                               .limit_bytes = plan.limit.tensor_bytes,
                                               .max_samples = request.max_micro_batch_size}};
  CpuMicroBatchDryRun dry_run(request.job, plan.step_config, plan.effort);
  plan.split = learn_split_plan(dry_run, problem);
  if (plan.split->peaks.reserved_bytes <= plan.needed_bytes()) return;
  plan.peak_bytes = plan.split->peaks.allocated_bytes;
  plan.malloc_cached_bytes = plan.split->peaks.reserved_bytes - plan.split->peaks.allocated_bytes;
}

}  // namespace vlmtrain::planner
