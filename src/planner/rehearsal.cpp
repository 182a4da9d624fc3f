#include "vlmtrain/planner/rehearsal.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "planner/cost_recorder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/async_scalars.h"
#include "vlmtrain/engine/step.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::planner {

namespace {

using Clock = std::chrono::steady_clock;

std::vector<data::Sample> samples_of(const std::vector<SampleGroup>& groups) {
  std::vector<data::Sample> samples;
  for (const auto& group : groups) {
    samples.insert(samples.end(), static_cast<size_t>(group.count), data::sample_of(group.shape));
  }
  return samples;
}

/// What a run holds on the card while it trains, and how it does a step.
class Run {
 public:
  Run(const Job& job, const RehearsalRequest& request, at::Device device)
      : settings_{.device = device,
                  .micro_batch_size = request.choices.micro_batch_size,
                  .loss_chunk_rows = request.choices.loss_chunk_rows},
        model_(models::build_model(job.model, device, engine::dtype_of(job.precision), job.lora, job.quantization)) {
    models::freeze(*model_, job.frozen);
    model_->set_recompute(request.choices.recompute);
    model_->set_vision_tiles_per_pass(request.choices.vision_tiles_per_pass);
    optimizer_ = std::make_unique<engine::AdamW>(model_->parameters(),
                                                 engine::AdamWSettings{.max_grad_norm = job.max_grad_norm});
  }

  /// As the trainer does it; the scalars of a step live until the next one.
  void step(const std::vector<SampleGroup>& samples) {
    const auto result =
        engine::optimizer_step(*model_, *optimizer_, samples_of(samples), engine::LearningRates{}, settings_);
    scalars_.emplace(std::vector<at::Tensor>{result.loss, result.grad_norm});
  }

  const models::VisionLanguageModel& model() const { return *model_; }
  const engine::AdamW& optimizer() const { return *optimizer_; }

 private:
  engine::StepSettings settings_;
  std::unique_ptr<models::VisionLanguageModel> model_;
  std::unique_ptr<engine::AdamW> optimizer_;
  std::optional<engine::AsyncScalars> scalars_;
};

std::vector<TimelinePoint> timeline_of(const std::vector<memory::AllocationEvent>& events, size_t first) {
  std::vector<TimelinePoint> timeline;
  memory::AllocationReplay replay;
  for (size_t i = 0; i < events.size(); ++i) {
    const auto& event = events[i];
    replay.apply(event);
    if (i >= first) timeline.push_back({replay.by_component(), event.reserved_bytes, event.place, event.backward});
  }
  return timeline;
}

class Rehearser {
 public:
  Rehearser(const Job& job, const RehearsalRequest& request, at::Device device)
      : job_(job), request_(request), device_(device) {}

  Outcome run() {
    memory::set_expandable_segments(request_.choices.expandable_segments);
    memory::reset_peaks(device_);
    retries_before_ = memory::allocation_retries(device_);
    if (request_.with_detail || request_.with_timeline) trace_.emplace(device_);
    try {
      rehearse();
    } catch (const c10::OutOfMemoryError&) {
      outcome_.out_of_memory = true;
    }
    outcome_.allocation_retries = memory::allocation_retries(device_) - retries_before_;
    return std::move(outcome_);
  }

 private:
  void rehearse() {
    Run run(job_, request_, device_);
    const size_t built = trace_ ? trace_->events().size() : 0;
    size_t last_step = built;
    for (const auto& samples : request_.steps) {
      const bool is_last = &samples == &request_.steps.back();
      if (trace_) last_step = trace_->events().size();
      std::optional<CostRecorder> recorder;
      if (request_.with_costs && is_last) {
        recorder.emplace(*memory::find_gpu(vgpu::attached()->card()), engine::dtype_of(job_.precision));
      }
      run.step(samples);
      if (recorder) outcome_.costs = recorder->costs();
      const auto memory = memory::device_memory(device_);
      outcome_.steps.push_back({memory.allocated_peak_bytes, memory.reserved_peak_bytes});
      memory::reset_peaks(device_);
    }
    if (!trace_) return;
    trace_->assign_workspaces(built);
    outcome_.detail = RehearsalDetail{.peak = memory::find_peak(trace_->events()),
                                      .vision_blocks = run.model().vision_blocks(),
                                      .language_blocks = run.model().language_blocks(),
                                      .total_elements = run.model().parameters().total_elements(),
                                      .trained_elements = run.optimizer().trained_elements(),
                                      .timeline = {}};
    if (request_.with_timeline) outcome_.detail->timeline = timeline_of(trace_->events(), last_step);
  }

  const Job& job_;
  const RehearsalRequest& request_;
  at::Device device_;
  int64_t retries_before_ = 0;
  std::optional<memory::AllocationTrace> trace_;
  Outcome outcome_;
};

}  // namespace

StepPeaks Outcome::peaks() const {
  StepPeaks most;
  for (const auto& step : steps) {
    most.allocated_bytes = std::max(most.allocated_bytes, step.allocated_bytes);
    most.reserved_bytes = std::max(most.reserved_bytes, step.reserved_bytes);
  }
  return most;
}

Outcome rehearse(const Job& job, const RehearsalRequest& request, at::Device device) {
  VLMTRAIN_CHECK(vgpu::attached() != nullptr, "a rehearsal needs a virtual card");
  const auto start = Clock::now();
  memory::release_unused(device);
  Outcome outcome = Rehearser(job, request, device).run();
  outcome.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return outcome;
}

}  // namespace vlmtrain::planner
