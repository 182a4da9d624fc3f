#include "vlmtrain/planner/backend.h"

#include <utility>

#include "planner/dry_run/cpu_dry_run.h"
#include "vlmtrain/planner/dry_run_process.h"

namespace vlmtrain::planner {

namespace {

/// Dry runs on LibTorch's meta device in this process. A dry run takes about 0.1 s. Throws
/// c10::Error if an operation does not support the meta device.
class HostBackend final : public Backend {
 public:
  /// Builds the model. Throws the exceptions of build_model().
  explicit HostBackend(Job job) : job_(std::move(job)) {
    start_session(CpuDryRun::Detail::kNone, /*with_training=*/true);
  }

  const BackendTraits& traits() const override {
    static constexpr BackendTraits kTraits{.predicts_time = false,
                                           .is_cheap = true,
                                           .is_detail_expensive = true,
                                           .fragments_memory = false,
                                           .num_distinct_micro_batches = 1,
                                           // Smaller chunks run more operations. Not tuned.
                                           .min_loss_chunk_rows = 128};
    return kTraits;
  }

  void set_job(const Job& job) override {
    session_.reset();
    job_ = job;
  }

  DryRunResult dry_run(const DryRunRequest& request) override {
    // A traced session is slow, so that it is used for one request only.
    const bool is_traced = request.with_detail || request.with_timeline;
    if (is_traced || !session_ || is_training_ != request.with_training)
      start_session(is_traced ? CpuDryRun::Detail::kPeakByComponent : CpuDryRun::Detail::kNone, request.with_training);
    DryRunResult result;
    for (size_t i = 0; i < request.steps.size(); ++i) {
      engine::StepLayout layout = make_step_layout(request.step_config, expand_groups(request.steps[i]));
      if (!request.micro_batch_splits.empty()) layout.split = request.micro_batch_splits[i];
      DryRunResult step = session_->step(layout, request.steps[i]);
      result.steps.push_back(step.steps.front());
      result.detail = std::move(step.detail);
      result.seconds += step.seconds;
    }
    for (const EvaluationBatch& batch : request.evaluation_batches)
      result.evaluation_peaks.push_back(session_->evaluate(batch));
    if (is_traced) session_.reset();
    return result;
  }

  std::optional<ModelSizes> find_model_sizes() override {
    if (!session_) start_session(CpuDryRun::Detail::kNone, /*with_training=*/true);
    return ModelSizes{.blocks = {.vision = session_->num_vision_blocks(), .language = session_->num_language_blocks()},
                      .persistent_bytes = session_->persistent_bytes()};
  }

 private:
  void start_session(CpuDryRun::Detail detail, bool with_training) {
    session_.reset();  // only one may exist at a time
    session_.emplace(job_, detail, with_training);
    is_training_ = with_training;
  }

  Job job_;
  std::optional<CpuDryRun> session_;
  bool is_training_ = true;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const Job& job, const PlanTarget& target) {
  if (const auto* const gpu = std::get_if<TargetGpu>(&target))
    return std::make_unique<DryRunProcess>(job, make_virtual_gpu(*gpu));
  return std::make_unique<HostBackend>(job);
}

}  // namespace vlmtrain::planner
