#include "vlmtrain/planner/dry_run.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "planner/dry_run/cost_recorder.h"
#include "planner/dry_run/dry_run_session.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/out_of_memory.h"
#include "vlmtrain/planner/communication.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {

namespace {

using Clock = std::chrono::steady_clock;

/// Returns a point for each event from index `first` on. Earlier events only determine the initial
/// state.
std::vector<MemoryTimelinePoint> make_timeline(const std::vector<memory::AllocationEvent>& events, size_t first) {
  std::vector<MemoryTimelinePoint> timeline;
  memory::AllocationReplay replay;
  for (size_t i = 0; i < events.size(); ++i) {
    const auto& event = events[i];
    replay.apply_event(event);
    if (i >= first)
      timeline.push_back({replay.bytes_by_component(), event.reserved_bytes, event.tag, event.is_backward});
  }
  return timeline;
}

/// One call of planner::dry_run().
class DryRunner {
 public:
  DryRunner(const Job& job, const DryRunRequest& request, at::Device device)
      : job_(job), request_(request), device_(device) {}

  DryRunResult run() {
    memory::set_expandable_segments(request_.step_config.expandable_segments);
    memory::reset_peak_memory_stats(device_);
    num_alloc_retries_at_start_ = memory::get_num_alloc_retries(device_);
    if (request_.with_detail || request_.with_timeline) trace_.emplace(device_);
    try {
      dry_run();
    } catch (const engine::StepOutOfMemory&) {
      result_.ran_out_of_memory = true;
    } catch (const std::exception& error) {
      const auto out_of_memory = memory::detect_out_of_memory(error);
      if (!out_of_memory) throw;
      if (out_of_memory->kind == memory::MemoryKind::kHost) throw make_out_of_host_memory_error(out_of_memory->reason);
      result_.ran_out_of_memory = true;
    }
    result_.num_allocation_retries = memory::get_num_alloc_retries(device_) - num_alloc_retries_at_start_;
    return std::move(result_);
  }

 private:
  static const memory::GpuSpec& get_gpu() {
    return *memory::find_gpu_spec(vgpu::find_virtual_gpu_interface()->gpu_name());
  }

  /// Returns the bytes that an update reads from host memory, the gradients twice: for the norm, too.
  static int64_t compute_updated_host_bytes(const DryRunSession& session) {
    int64_t bytes =
        session.training_state().optimizer.host_bytes() + 2 * session.training_state().gradient_buckets.host_bytes();
    for (const auto& range : session.model().parameters().blocks()) {
      if (range.sharded_block && range.sharded_block->is_on_host()) {
        bytes +=
            static_cast<int64_t>(range.sharded_block->local_shard(nn::ShardedBlock::SectionKind::kTrained).nbytes());
      }
    }
    return bytes;
  }

  /// Bytes of copies between page-locked host memory and the GPU.
  struct CopiedBytes {
    double in = 0;   ///< to the GPU
    double out = 0;  ///< to the host
  };

  /// Returns the recorded costs of a step with these copies. Copies overlap with the passes; both directions
  /// may share the link. Kernels wait for what they read and write in place: sums of gradients in each
  /// micro-batch, and the update's state.
  StepCosts compute_costs(const CostRecorder& recorder, const DryRunSession& session, const CopiedBytes& copied,
                          int64_t num_micro_batches) const {
    StepCosts costs = recorder.costs();
    const memory::HostLinkSpeed link = job_.host_link.value_or(get_host_link_speed(get_gpu()));
    const auto micro_batches = static_cast<double>(num_micro_batches);
    const auto gradient_bytes = static_cast<double>(session.training_state().gradient_buckets.host_bytes());
    costs.passes_seconds = costs.total.seconds - costs.optimizer.seconds;
    costs.link = {.copies = (copied.in / link.in + copied.out / link.out) / micro_batches,
                  .in_place = gradient_bytes / link.both};
    costs.optimizer.seconds += static_cast<double>(compute_updated_host_bytes(session)) / link.both;
    costs.total.seconds = costs.link.compute_total(costs.passes_seconds, micro_batches) + costs.optimizer.seconds;
    return costs;
  }

  /// Returns the copies so far.
  static CopiedBytes get_copied_bytes() {
    vgpu::GpuCounters counters;
    vgpu::find_virtual_gpu_interface()->read_counters(&counters);
    return {.in = static_cast<double>(counters.host_to_device_pinned.bytes),
            .out = static_cast<double>(counters.device_to_host_pinned.bytes)};
  }

  void dry_run() {
    DryRunSession session(job_, device_, request_.with_training);
    const size_t first_step_event_index = trace_ ? trace_->events().size() : 0;
    size_t last_step_event_index = first_step_event_index;
    VLMTRAIN_CHECK(request_.micro_batch_splits.empty() || request_.micro_batch_splits.size() == request_.steps.size(),
                   "{} micro-batch splits for {} steps", request_.micro_batch_splits.size(), request_.steps.size());
    for (size_t i = 0; i < request_.steps.size(); ++i) {
      const auto& samples = request_.steps[i];
      const bool is_last = i + 1 == request_.steps.size();
      if (trace_) last_step_event_index = trace_->events().size();
      if (request_.empty_cache_each_step) {
        memory::empty_cache(device_);
        memory::reset_peak_memory_stats(device_);
      }
      std::optional<CostRecorder> recorder;
      if (request_.with_step_seconds || (request_.with_costs && is_last)) {
        recorder.emplace(
            memory::scale_multiprocessors(get_gpu(), memory::get_device_properties(device_).num_multiprocessors),
            engine::to_dtype(job_.precision));
      }
      engine::StepLayout layout = make_step_layout(request_.step_config, expand_groups(samples));
      if (!request_.micro_batch_splits.empty()) layout.split = request_.micro_batch_splits[i];
      const int64_t num_micro_batches = layout.split.num_micro_batches();
      const CopiedBytes before = get_copied_bytes();
      session.step(samples, layout);
      const CopiedBytes after = get_copied_bytes();
      const CopiedBytes copied{.in = after.in - before.in, .out = after.out - before.out};
      if (recorder && is_last && request_.with_costs)
        result_.costs = compute_costs(*recorder, session, copied, num_micro_batches);
      if (request_.with_step_seconds)
        result_.step_seconds.push_back(compute_costs(*recorder, session, copied, num_micro_batches).total.seconds);
      const auto memory = memory::get_device_memory_stats(device_);
      const auto& offloader = session.training_state().activation_offloader;
      result_.steps.push_back({.allocated_bytes = memory.allocated_peak_bytes,
                               .reserved_bytes = memory.reserved_peak_bytes,
                               .host_activation_bytes = offloader ? offloader->peak_bytes() : 0});
      memory::reset_peak_memory_stats(device_);
    }
    result_.collectives = session.step_collectives();
    for (const auto& batch : request_.evaluation_batches) {
      memory::empty_cache(device_);
      memory::reset_peak_memory_stats(device_);
      session.evaluate(batch);
      const auto memory = memory::get_device_memory_stats(device_);
      result_.evaluation_peaks.push_back({memory.allocated_peak_bytes, memory.reserved_peak_bytes});
    }
    if (!trace_) return;
    // Everything except gradients that was allocated since the first step and still exists is a
    // workspace of a library.
    trace_->tag_workspaces(first_step_event_index);
    result_.detail =
        DryRunDetail{.peak = memory::find_memory_peak(trace_->events()),
                     .num_vision_blocks = session.model().num_vision_blocks(),
                     .num_language_blocks = session.model().num_language_blocks(),
                     .num_parameters = session.model().parameters().count_elements(),
                     .num_trainable_parameters = session.training_state().optimizer.count_trained_elements(),
                     .host_table_bytes = session.model().parameters().host_table_bytes(),
                     .host_state_bytes = session.training_state().optimizer.host_bytes(),
                     .host_block_bytes = session.model().parameters().host_block_bytes(),
                     .host_gradient_bytes = session.training_state().gradient_buckets.host_bytes(),
                     .timeline = {}};
    if (request_.with_timeline) result_.detail->timeline = make_timeline(trace_->events(), last_step_event_index);
  }

  const Job& job_;
  const DryRunRequest& request_;
  at::Device device_;
  int64_t num_alloc_retries_at_start_ = 0;
  std::optional<memory::AllocationTrace> trace_;
  DryRunResult result_;
};

}  // namespace

StepPeaks DryRunResult::compute_max_peaks() const {
  StepPeaks max_peaks;
  for (const auto& step : steps) {
    max_peaks.allocated_bytes = std::max(max_peaks.allocated_bytes, step.allocated_bytes);
    max_peaks.reserved_bytes = std::max(max_peaks.reserved_bytes, step.reserved_bytes);
    max_peaks.host_activation_bytes = std::max(max_peaks.host_activation_bytes, step.host_activation_bytes);
  }
  return max_peaks;
}

void add_sample(std::vector<SampleGroup>& groups, data::SampleShape shape) {
  if (!groups.empty() && groups.back().shape == shape) {
    ++groups.back().count;
  } else {
    groups.push_back({std::move(shape), 1});
  }
}

std::vector<SampleGroup> group_samples(std::span<const data::SampleShape> shapes) {
  std::vector<SampleGroup> groups;
  for (const auto& shape : shapes) add_sample(groups, shape);
  return groups;
}

std::vector<SampleGroup> take_samples(std::span<const data::SampleShape> shapes, int64_t count) {
  const int64_t num_distinct_samples = std::min(count, std::ssize(shapes));
  auto groups = group_samples(shapes.first(static_cast<size_t>(num_distinct_samples)));
  groups.back().count += count - num_distinct_samples;
  return groups;
}

std::vector<data::SampleShape> expand_groups(const std::vector<SampleGroup>& groups) {
  std::vector<data::SampleShape> shapes;
  for (const auto& group : groups) shapes.insert(shapes.end(), static_cast<size_t>(group.count), group.shape);
  return shapes;
}

engine::StepLayout make_step_layout(const StepConfig& step_config, std::span<const data::SampleShape> shapes,
                                    const engine::SplitConstraint& constraint) {
  return {.split = step_config.memory_cost_table
                       ? split_by_memory(shapes, *step_config.memory_cost_table, constraint)
                       : engine::split_evenly(std::ssize(shapes), step_config.micro_batch_size, constraint),
          .recompute = step_config.recompute,
          .vision_tiles_per_pass = step_config.vision_tiles_per_pass,
          .loss_chunk_rows = step_config.loss_chunk_rows,
          .copies_ahead = step_config.copies_ahead};
}

DryRunResult dry_run(const Job& job, const DryRunRequest& request, at::Device device) {
  VLMTRAIN_CHECK(vgpu::find_virtual_gpu_interface() != nullptr, "a dry run needs a virtual GPU");
  const auto start = Clock::now();
  memory::empty_cache(device);
  DryRunResult result = DryRunner(job, request, device).run();
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

}  // namespace vlmtrain::planner
