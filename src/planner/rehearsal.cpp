#include "vlmtrain/planner/rehearsal.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "planner/cost_recorder.h"
#include "planner/rehearsed_run.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/step.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/shortage.h"
#include "vlmtrain/planner/step_cut.h"

namespace vlmtrain::planner {

namespace {

using Clock = std::chrono::steady_clock;

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
    } catch (const engine::StepOutOfMemory&) {
      outcome_.out_of_memory = true;
    } catch (const std::exception& error) {
      const auto shortage = memory::shortage_in(error);
      if (!shortage) throw;
      if (shortage->of == memory::Scarce::kHost) throw rehearsal_lacks_memory(shortage->reason);
      outcome_.out_of_memory = true;
    }
    outcome_.allocation_retries = memory::allocation_retries(device_) - retries_before_;
    return std::move(outcome_);
  }

 private:
  void rehearse() {
    RehearsedRun run(job_, device_, request_.trains);
    const size_t built = trace_ ? trace_->events().size() : 0;
    size_t last_step = built;
    VLMTRAIN_CHECK(request_.cuts.empty() || request_.cuts.size() == request_.steps.size(), "{} cuts of {} steps",
                   request_.cuts.size(), request_.steps.size());
    for (size_t i = 0; i < request_.steps.size(); ++i) {
      const auto& samples = request_.steps[i];
      const bool is_last = i + 1 == request_.steps.size();
      if (trace_) last_step = trace_->events().size();
      if (request_.each_from_empty_cache) {
        memory::release_unused(device_);
        memory::reset_peaks(device_);
      }
      std::optional<CostRecorder> recorder;
      if (request_.with_step_seconds || (request_.with_costs && is_last)) {
        const memory::Gpu& card = *memory::find_gpu(vgpu::attached()->card());
        recorder.emplace(memory::with_multiprocessors(card, memory::describe(device_).multiprocessors),
                         engine::dtype_of(job_.precision));
      }
      engine::StepLayout layout = layout_of(request_.choices, shapes_of(samples));
      if (!request_.cuts.empty()) layout.cut = request_.cuts[i];
      run.step(samples, layout);
      if (recorder && is_last && request_.with_costs) outcome_.costs = recorder->costs();
      if (request_.with_step_seconds) outcome_.step_seconds.push_back(recorder->costs().total.seconds);
      const auto memory = memory::device_memory(device_);
      outcome_.steps.push_back({memory.allocated_peak_bytes, memory.reserved_peak_bytes});
      memory::reset_peaks(device_);
    }
    outcome_.sums = run.sums_of_step();
    for (const auto& batch : request_.evaluations) {
      memory::release_unused(device_);
      memory::reset_peaks(device_);
      run.evaluate(batch);
      const auto memory = memory::device_memory(device_);
      outcome_.evaluations.push_back({memory.allocated_peak_bytes, memory.reserved_peak_bytes});
    }
    if (!trace_) return;
    trace_->assign_workspaces(built);
    outcome_.detail = RehearsalDetail{.peak = memory::find_peak(trace_->events()),
                                      .vision_blocks = run.model().vision_blocks(),
                                      .language_blocks = run.model().language_blocks(),
                                      .total_elements = run.model().parameters().total_elements(),
                                      .trained_elements = run.training().optimizer.trained_elements(),
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

void add_sample(std::vector<SampleGroup>& groups, data::SampleShape shape) {
  if (!groups.empty() && groups.back().shape == shape) {
    ++groups.back().count;
  } else {
    groups.push_back({std::move(shape), 1});
  }
}

std::vector<SampleGroup> groups_of(std::span<const data::SampleShape> shapes) {
  std::vector<SampleGroup> groups;
  for (const auto& shape : shapes) add_sample(groups, shape);
  return groups;
}

std::vector<data::SampleShape> shapes_of(const std::vector<SampleGroup>& groups) {
  std::vector<data::SampleShape> shapes;
  for (const auto& group : groups) shapes.insert(shapes.end(), static_cast<size_t>(group.count), group.shape);
  return shapes;
}

engine::StepLayout layout_of(const Choices& choices, std::span<const data::SampleShape> shapes,
                             const engine::CutRule& rule) {
  return {.cut = choices.costs ? cut_by_memory(shapes, *choices.costs, rule)
                               : engine::equal_cut(std::ssize(shapes), choices.micro_batch_size, rule),
          .recompute = choices.recompute,
          .vision_tiles_per_pass = choices.vision_tiles_per_pass,
          .loss_chunk_rows = choices.loss_chunk_rows,
          .copies_ahead = choices.copies_ahead};
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
