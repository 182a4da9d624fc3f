#include "train/planning/gpu_run_plan.h"

#include "train/data_check/run_records.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/host_link.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/planner/backend.h"
#include "vlmtrain/report/plan_text.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::train {

namespace {

/// Number of steps whose durations are summed. Predicting each takes some tenths of a second at the
/// end of the run; fewer steps would average less noise. Not tuned.
constexpr size_t kMaxTimedSteps = 6;
constexpr double kBytesPerGb = 1e9;

}  // namespace

void StepTimeRecorder::record_step(const PlannedStep& step, const CompletedStep& completed_step, double seconds) {
  if (completed_step.num_failed_attempts > 0 || completed_step.layout != step.layout) {
    timed_steps_.clear();  // the time of a repeated step cannot be attributed to one layout
    return;
  }
  TimedStep timed_step{.samples = {}, .seconds = seconds - step.data_wait_seconds};
  for (const auto& sample : step.batch.samples) planner::add_sample(timed_step.samples, data::get_sample_shape(sample));
  timed_steps_.push_back(std::move(timed_step));
  if (timed_steps_.size() > kMaxTimedSteps) timed_steps_.pop_front();
}

std::optional<double> StepTimeRecorder::compute_measured_to_predicted_ratio(
    const planner::Job& job, const planner::StepConfig& step_config, const planner::VirtualGpu& virtual_gpu) const {
  if (timed_steps_.size() < kMaxTimedSteps) return std::nullopt;
  planner::DryRunProcess process(job, virtual_gpu);
  double measured_seconds = 0;
  double predicted_seconds = 0;
  for (const auto& step : timed_steps_) {
    const auto dry_run_result =
        process.dry_run({.step_config = step_config, .steps = {step.samples}, .with_costs = true});
    if (!dry_run_result.costs) return std::nullopt;
    measured_seconds += step.seconds;
    predicted_seconds += dry_run_result.costs->total.seconds;
  }
  if (!(measured_seconds > 0 && predicted_seconds > 0)) return std::nullopt;
  return measured_seconds / predicted_seconds;
}

namespace {

/// Rethrows UserErrors that the run causes, such as an invalid model. Wraps all other errors in
/// PlanningError.
planner::Plan make_plan_or_throw(const planner::PlanRequest& request) {
  try {
    return planner::make_plan(request);
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kFailed) throw;
    throw PlanningError(error.what());
  } catch (const std::exception& error) {
    throw PlanningError(error.what());
  }
}

/// Returns the measurements of past runs; nullopt on a virtual GPU, whose measurements are
/// meaningless.
std::optional<PastRunMeasurements> load_gpu_past_runs(const planner::TargetGpu& target) {
  if (planner::is_on_virtual_gpu()) return std::nullopt;
  return load_past_runs(find_past_runs_file(), get_gpu_run_environment(target.device_name));
}

/// Returns the host memory that this machine has free; nullopt on a virtual GPU, whose host memory is
/// not used.
std::optional<int64_t> find_free_host_bytes() {
  if (planner::is_on_virtual_gpu()) return std::nullopt;
  return memory::get_available_host_memory().bytes - memory::get_resident_bytes();
}

bool may_offload(const planner::MemoryOptions& options) {
  return options.offload != engine::Offload::kNone || options.offload_activations != false;
}

/// Returns the speed of the link to host memory; nullopt on a virtual GPU, or if it cannot be measured.
std::optional<memory::HostLinkSpeed> try_measure_host_link(at::Device device) {
  if (planner::is_on_virtual_gpu()) return std::nullopt;
  std::optional<memory::HostLinkSpeed> speed;
  try {
    speed = memory::measure_host_link(device);
    spdlog::info("link to host memory: {:.1f} GB/s in, {:.1f} out, {:.1f} each way at a time", speed->in / kBytesPerGb,
                 speed->out / kBytesPerGb, speed->both / kBytesPerGb);
  } catch (const std::exception& error) {
    spdlog::warn("the link to host memory was not measured, so the plan uses the data sheet's speed: {}", error.what());
  }
  memory::empty_cache(device);
  return speed;
}

/// Plans with the saved recomputation if it fits, and otherwise chooses it again. Slightly less
/// memory than at the first start is no reason to recompute other blocks.
planner::Plan plan_with_saved_config(const planner::PlanRequest& request, const SavedPlan& saved_plan) {
  const auto limit =
      planner::compute_memory_limit(request.target, request.mode, request.limit_gigabytes, request.workload.world_size);
  if (limit.limit_bytes < saved_plan.limit_bytes && !request.constraints.micro_batch_size) {
    spdlog::warn(
        "device memory: the run was planned for {:.2f} GB, and {:.2f} GB are available on the GPU; it continues with "
        "the same micro-batches, and splits those that do not fit",
        to_gigabytes(saved_plan.limit_bytes), to_gigabytes(limit.limit_bytes));
  }
  planner::PlanRequest constrained_request = request;
  constrained_request.constraints = constrain_to_saved_config(request.constraints, saved_plan.step_config);
  // The split comes from the saved cost table, not from a fixed size.
  constrained_request.constraints.micro_batch_size = request.constraints.micro_batch_size;
  constrained_request.with_suggestions = false;
  planner::Plan plan = make_plan_or_throw(constrained_request);
  plan.constraints = request.constraints;
  return plan.fits ? plan : make_plan_or_throw(request);
}

}  // namespace

GpuRunPlan::GpuRunPlan(const Config& config, at::Device device, planner::Workload workload,
                       std::vector<planner::SampleLimit> limits, const planner::Job& job, const RankGroup& ranks,
                       std::filesystem::path run_folder, MicroBatchSplitSource split_source,
                       const std::optional<SavedPlan>& saved_plan)
    : device_(device), run_folder_(std::move(run_folder)), is_main_process_(ranks.is_main_process()) {
  auto request = make_plan_request(config, job, planner::make_target_gpu(memory::get_device_properties(device)),
                                   std::move(workload));
  request.sample_limits = std::move(limits);
  request.host_memory_bytes = find_free_host_bytes();
  if (may_offload(config.memory)) request.job.host_link = try_measure_host_link(device);
  past_runs_ = load_gpu_past_runs(request.gpu());
  if (past_runs_) calibrate_with_past_runs(request.gpu(), *past_runs_);
  request.with_split_plan = split_source == MicroBatchSplitSource::kPlanner;
  const auto make = [&saved_plan](const planner::PlanRequest& requested) {
    return saved_plan ? plan_with_saved_config(requested, *saved_plan) : make_plan_or_throw(requested);
  };
  auto [plan, oversized_micro_batch_size] =
      make_plan_with_split_fallback(std::move(request), config.memory.allow_splits, make);
  plan_ = std::move(plan);
  if (past_runs_) calibrate_with_past_runs(plan_, *past_runs_);
  if (!plan_.fits) throw UserError(ExitCode::kDoesNotFit, report::format_plan_error(plan_));
  if (oversized_micro_batch_size) {
    spdlog::info("micro-batches of {} do not fit with the largest samples; those that do not are split",
                 *oversized_micro_batch_size);
    plan_.best_estimate.step_config.micro_batch_size = *oversized_micro_batch_size;
    has_oversized_micro_batch_ = true;
  }
  // Later steps may need more, but host memory is allocated once.
  if (plan_.job.offload_activations) plan_.job.max_host_activation_bytes = plan_.peaks().host_activation_bytes;
  step_config_ = plan_.best_estimate.step_config;
  if (plan_.split) saved_plan_ = {.step_config = step_config_, .limit_bytes = plan_.limit.limit_bytes};
  if (plan_.split) saved_plan_->step_config.memory_cost_table = plan_.split->table;
  if (saved_plan && saved_plan->step_config.memory_cost_table && !config.training.micro_batch_size)
    saved_plan_ = saved_plan;
  if (saved_plan_) step_config_.memory_cost_table = saved_plan_->step_config.memory_cost_table;
  write();
  spdlog::info("plan: {}; made in {:.1f} s", report::format_plan_headline(plan_), plan_.planning_stats.seconds);
  if (plan_.host_bytes() > plan_.detail.host_table_bytes) {
    spdlog::info("host memory: {}={}, {}={}, with {:.1f} GB of page-locked host memory", keys::memory::kOffload,
                 engine::to_string(plan_.job.offload), keys::memory::kOffloadActivations, plan_.job.offload_activations,
                 to_gigabytes(plan_.host_bytes()));
  }
  if (plan_.job.offload_activations && plan_.peaks().host_activation_bytes == 0)
    spdlog::warn("{} has no effect: no block is recomputed", keys::memory::kOffloadActivations);
  memory::set_expandable_segments(step_config().expandable_segments);
  if (has_oversized_micro_batch_ && !config.memory.look_ahead) {
    // Otherwise the allocator would use the margin, which is for memory that no plan can predict.
    memory::limit_reserved_bytes(device, plan_.limit.limit_bytes);
  } else if (config.memory.limit_gb) {
    memory::limit_reserved_bytes(device, plan_.limit.allowed_bytes - plan_.limit.context_bytes);
  }
}

planner::EvaluationPlan GpuRunPlan::plan_evaluation(const Config& config, const EvaluationSet& evaluation_set) {
  plan_.evaluation = planner::plan_evaluation_in_training(plan_, step_config(),
                                                          make_evaluation_request(config, evaluation_set, plan_.job));
  write();
  return *plan_.evaluation;
}

LookAheadSettings GpuRunPlan::make_look_ahead_settings() const {
  return {
      .job = plan_.job,
      .step_config = step_config(),
      .target = planner::make_virtual_gpu(plan_.gpu()),
      .limit_bytes = plan_.limit.limit_bytes,
      .waits_for_answers = planner::is_on_virtual_gpu() && !vgpu::find_virtual_gpu_interface()->has_launch_latency()};
}

void GpuRunPlan::report_measurements(const memory::DeviceMemoryStats& measured_memory, int64_t device_used_bytes,
                                     int64_t steps, const LookAheadSummary* look_ahead) const {
  const auto planned_peaks = plan_.peaks();
  const int64_t num_alloc_retries = memory::get_num_alloc_retries(device_);
  spdlog::info(
      "peak device memory: {:.2f} GB allocated (planned: {:.2f}), {:.2f} GB reserved (planned: {:.2f}); {} allocations "
      "were retried",
      to_gigabytes(measured_memory.allocated_peak_bytes), to_gigabytes(planned_peaks.allocated_bytes),
      to_gigabytes(measured_memory.reserved_peak_bytes), to_gigabytes(planned_peaks.reserved_bytes), num_alloc_retries);
  nlohmann::ordered_json json{{"allocated_peak_bytes", measured_memory.allocated_peak_bytes},
                              {"reserved_peak_bytes", measured_memory.reserved_peak_bytes},
                              {"allocation_retries", num_alloc_retries},
                              {"device_used_bytes", device_used_bytes},
                              {"steps", steps}};
  if (look_ahead != nullptr) {
    spdlog::info(
        "look-ahead: {} of {} steps predicted, {} split before they failed; reserved memory within {:.2f} % of the "
        "prediction; {:.3f} CPU seconds per step",
        look_ahead->num_predicted_steps, look_ahead->num_predicted_steps + look_ahead->num_late_steps,
        look_ahead->num_split_steps, 100 * look_ahead->max_relative_error,
        look_ahead->cpu_seconds / static_cast<double>(std::max<int64_t>(1, look_ahead->num_predicted_steps)));
    nlohmann::ordered_json look_ahead_json{
        {"forecast_steps", look_ahead->num_predicted_steps}, {"late_steps", look_ahead->num_late_steps},
        {"split_steps", look_ahead->num_split_steps},        {"unfit_steps", look_ahead->num_oversized_steps},
        {"worst_error", look_ahead->max_relative_error},     {"cpu_seconds", look_ahead->cpu_seconds},
        {"wait_seconds", look_ahead->wait_seconds}};
    // Aliases keep scripts working that read the fields of older versions.
    io::add_field_aliases(look_ahead_json, {{"forecast_steps", "foreseen_steps"},
                                            {"split_steps", "cut_steps"},
                                            {"unfit_steps", "hopeless_steps"},
                                            {"wait_seconds", "waited_seconds"}});
    json["look_ahead"] = std::move(look_ahead_json);
    io::add_field_aliases(json, {{"look_ahead", "twin"}});
  }
  write(json);
}

void GpuRunPlan::record_measurements(int64_t context_bytes, const memory::DeviceMemoryStats& measured_memory,
                                     const StepTimeRecorder& times) const {
  if (planner::is_on_virtual_gpu()) return;
  const auto file = find_past_runs_file();
  if (file.empty()) return;
  constexpr int64_t kMaxContextRatio =
      2;  // a context this much larger than expected includes other processes; not tuned
  PastRunMeasurements measured_run{.num_runs = 1};
  if (plan_.gpu().other_process_bytes == 0 && context_bytes > 0 &&
      context_bytes <= kMaxContextRatio * plan_.gpu().gpu->context_bytes) {
    measured_run.context_bytes = context_bytes;
  }
  if (measured_memory.reserved_peak_bytes > 0) {
    measured_run.peak_to_planned_memory_ratio =
        static_cast<double>(measured_memory.reserved_peak_bytes) / static_cast<double>(peaks().reserved_bytes);
  }
  try {
    measured_run.measured_to_predicted_step_time =
        times.compute_measured_to_predicted_ratio(plan_.job, step_config(), planner::make_virtual_gpu(plan_.gpu()));
  } catch (const std::exception& error) {
    spdlog::info("step times are not saved for later plans: {}", error.what());
  }
  save_measured_run(file, get_gpu_run_environment(plan_.gpu().device_name), measured_run);
}

void GpuRunPlan::write(const nlohmann::ordered_json& measurements) const {
  if (!is_main_process_) return;
  nlohmann::ordered_json json = plan_.to_json();
  if (past_runs_) json["past_runs"] = past_runs_->to_json();
  if (!measurements.is_null()) json["measured"] = measurements;
  io::write_file(run_folder_ / "plan.json", io::to_json_string(json, 2) + "\n");
}

void prepare_run_without_plan(const Config& config, at::Device device, const PlanningError& failure,
                              const RankGroup& ranks, const std::filesystem::path& run_folder) {
  spdlog::warn("planning failed: {}; the run uses single samples and full recomputation, unless {} or {} is set",
               failure.what(), keys::training::kMicroBatchSize, keys::memory::kRecompute);
  std::error_code ignored;
  if (ranks.is_main_process()) std::filesystem::remove(run_folder / "plan.json", ignored);  // of an earlier start
  memory::set_expandable_segments(config.memory.expandable_segments);
  if (!config.memory.limit_gb) return;
  const auto target = planner::make_target_gpu(memory::get_device_properties(device));
  const auto limit =
      planner::compute_memory_limit(target, config.memory.mode, config.memory.limit_gb, ranks.world_size());
  memory::limit_reserved_bytes(device, limit.allowed_bytes - limit.context_bytes);
}

}  // namespace vlmtrain::train
