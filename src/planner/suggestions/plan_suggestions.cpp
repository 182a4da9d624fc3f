#include "planner/suggestions/plan_suggestions.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "planner/plan/offload.h"
#include "planner/search/config_search.h"
#include "planner/suggestions/change_evaluator.h"
#include "planner/suggestions/suggestions.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/planner/communication.h"

namespace vlmtrain::planner {

namespace {

/// Smaller vision passes are assumed to save at most this multiple of the ratio that they save in
/// this plan. Not tuned.
constexpr double kVisionPassSavingsMargin = 1.2;
/// A smaller share of a step's time is within the error of predictions and not worth a note.
constexpr double kMinGain = 0.01;

bool supports_bf16(const PlanTarget& target) {
  const auto* const gpu = std::get_if<TargetGpu>(&target);
  return gpu == nullptr || supports_precision(*gpu->gpu, engine::Precision::kBf16);
}

/// Returns nullopt on a host.
std::optional<memory::HostLinkSpeed> find_host_link_speed(const PlanRequest& request) {
  const auto* const gpu = std::get_if<TargetGpu>(&request.target);
  if (gpu == nullptr) return std::nullopt;
  return request.job.host_link.value_or(get_host_link_speed(*gpu->gpu));
}

}  // namespace

PlanChangeEvaluator::PlanChangeEvaluator(const PlanRequest& request, const Plan& plan, PlanEvaluator& evaluator)
    : ChangeEvaluator({.job = request.job,
                       .workload = request.workload,
                       .constraints = request.constraints,
                       .sample_limits = request.sample_limits,
                       .flags = request.flags,
                       .has_bf16 = supports_bf16(request.target),
                       .host_link = find_host_link_speed(request),
                       .usable_host_bytes = compute_usable_host_bytes(request)}),
      request_(request),
      plan_(plan),
      evaluator_(evaluator) {}

double PlanChangeEvaluator::compute_abort_limit_ratio() const {
  double max_peak_ratio = 1;
  for (const auto& estimate : evaluator_.list_estimates()) {
    if (estimate->step_config.micro_batch_size != plan_.best_estimate.step_config.micro_batch_size ||
        estimate->step_config.recompute != plan_.best_estimate.step_config.recompute) {
      continue;
    }
    max_peak_ratio = std::max(
        max_peak_ratio, static_cast<double>(estimate->peaks.reserved_bytes) / static_cast<double>(needed_bytes()));
  }
  return kVisionPassSavingsMargin * max_peak_ratio;
}

std::optional<int64_t> PlanChangeEvaluator::measure_min_bytes(const Job& job, const Workload& workload,
                                                              const StepConstraints& constraints) {
  const models::RecomputeBlockCounts blocks{.vision = plan_.detail.num_vision_blocks,
                                            .language = plan_.detail.num_language_blocks};
  const auto min_memory_configs =
      make_min_memory_configs(constraints, workload, blocks, evaluator_.traits().min_loss_chunk_rows);
  try {
    return find_min_reserved_bytes(evaluator_, job, workload, min_memory_configs, limit_bytes(),
                                   compute_abort_limit_ratio() * static_cast<double>(limit_bytes()));
  } catch (const c10::Error&) {
    return std::nullopt;  // do not suggest a change that cannot be dry-run
  }
}

std::optional<ChangeEvaluator::RelaxedPlan> PlanChangeEvaluator::replan(const StepConstraints& constraints) {
  const StepConfigSearchResult search = search_step_config(evaluator_, request_.workload, constraints, limit_bytes());
  if (!search.fits) return std::nullopt;
  return RelaxedPlan{search.estimate.step_config.micro_batch_size, plan_.total_bytes(search.estimate)};
}

MemoryLimit PlanChangeEvaluator::compute_mode_limit(MemoryMode mode, std::optional<double> gigabytes) const {
  return compute_memory_limit(request_.target, mode, gigabytes, request_.workload.world_size);
}

std::vector<Suggestion> PlanChangeEvaluator::suggest_more_memory() const {
  const auto* const host = std::get_if<TargetHost>(&request_.target);
  const char* const memory_name = host == nullptr ? "the GPU's memory" : "the available memory";
  const int64_t device_bytes = host == nullptr ? request_.gpu().memory_bytes : host->available_memory.bytes;
  std::vector<Suggestion> list;
  const auto add = [&](std::string argument, std::string note, const MemoryLimit& limit) {
    list.push_back({.arguments = {std::move(argument)},
                    .note = std::move(note),
                    .makes_plan_fit = true,
                    .total_bytes = needed_bytes() + limit.overhead_bytes()});
  };
  const auto aggressive_limit = compute_mode_limit(MemoryMode::kAggressive, request_.limit_gigabytes);
  if (needed_bytes() <= aggressive_limit.limit_bytes) {
    add(fmt::format("{}=aggressive", keys::memory::kMode),
        fmt::format("keeps {:g} % of {} free instead of {:g} %", aggressive_limit.margin_percent, memory_name,
                    plan_.limit.margin_percent),
        aggressive_limit);
  }
  if (!request_.limit_gigabytes) return list;
  const auto sufficient_gigabytes =
      find_min_sufficient_limit(*request_.limit_gigabytes, to_gigabytes(device_bytes), [&](double candidate_gigabytes) {
        return needed_bytes() <= compute_mode_limit(request_.mode, candidate_gigabytes).limit_bytes;
      });
  if (sufficient_gigabytes) {
    add(fmt::format("{}={:g}", keys::memory::kLimitGb, *sufficient_gigabytes),
        fmt::format("allows the run more of {}", memory_name), compute_mode_limit(request_.mode, sufficient_gigabytes));
  } else if (const auto full_limit = compute_mode_limit(request_.mode, std::nullopt);
             needed_bytes() <= full_limit.limit_bytes) {
    add(fmt::format("{}=auto", keys::memory::kLimitGb), fmt::format("allows the run all of {}", memory_name),
        full_limit);
  }
  return list;
}

std::optional<Suggestion> PlanChangeEvaluator::suggest_larger_gpu() const {
  const bool fits_without_limit = needed_bytes() <= compute_mode_limit(request_.mode, std::nullopt).limit_bytes;
  if (request_.limit_gigabytes && fits_without_limit) return std::nullopt;
  return planner::suggest_larger_gpu(request_, plan_);
}

namespace {

/// Nominal sizes, in ascending order.
constexpr std::array kGpuSizesGib{4.0,  6.0,  8.0,  10.0, 11.0, 12.0, 16.0, 20.0, 22.0,  24.0,  32.0,
                                  40.0, 44.0, 48.0, 64.0, 72.0, 80.0, 94.0, 96.0, 141.0, 180.0, 192.0};
/// Maximum number of GPUs that are dry-run. The job may need slightly more memory on another
/// architecture, so that it may not fit on the first GPU that seems large enough. Not tuned.
constexpr int kMaxGpuDryRuns = 3;

struct GpuCandidate {
  std::string name;  ///< value for FlagSyntax::gpu_flag_format
  TargetGpu target;
};

/// Returns the GPUs that the flag of the request can select, in increasing order of memory.
std::vector<GpuCandidate> list_gpu_candidates(const PlanRequest& request) {
  std::vector<GpuCandidate> list;
  if (request.flags.selects_gpu_by_size || request.flags.gpu_flag_format.empty()) {
    for (const double size : kGpuSizesGib) list.push_back({fmt::format("{:g}", size), make_target_gpu(size)});
  } else {
    for (const auto& gpu : memory::list_gpu_specs()) {
      // Laptop GPUs are not sold separately.
      if (supports_precision(gpu, request.job.precision) && !gpu.name.ends_with("-laptop")) {
        list.push_back({std::string(gpu.name), find_target_gpu(std::string(gpu.name))});
      }
    }
  }
  std::stable_sort(list.begin(), list.end(), [](const GpuCandidate& left, const GpuCandidate& right) {
    return left.target.memory_bytes < right.target.memory_bytes;
  });
  return list;
}

/// Returns the least reserved memory of the request's job on another GPU.
int64_t measure_min_reserved_bytes(const TargetGpu& target, const PlanRequest& request, const Plan& plan,
                                   int64_t limit_bytes) {
  const DryRunDetail& detail = plan.detail;
  PlanEvaluator evaluator({.job = request.job,
                           .target = target,
                           .workload = request.workload,
                           .limit_bytes = limit_bytes,
                           .worst_cases = PlanEvaluator::WorstCases::kAll});
  const auto min_memory_configs = make_min_memory_configs(request.constraints, request.workload,
                                                          {detail.num_vision_blocks, detail.num_language_blocks},
                                                          evaluator.traits().min_loss_chunk_rows);
  const auto min_bytes = find_min_reserved_bytes(evaluator, request.job, request.workload, min_memory_configs,
                                                 limit_bytes, std::numeric_limits<double>::infinity());
  return min_bytes.value_or(std::numeric_limits<int64_t>::max());
}

Suggestion make_gpu_suggestion(const GpuCandidate& candidate, int64_t reserved_bytes, const MemoryLimit& limit,
                               const PlanRequest& request) {
  const FlagSyntax& flags = request.flags;
  Suggestion suggestion{.arguments = {},
                        .note = "a larger GPU",
                        .makes_plan_fit = true,
                        .total_bytes = reserved_bytes + limit.overhead_bytes()};
  if (flags.gpu_flag_format.empty()) {
    suggestion.note = fmt::format("a GPU with {} GB or more", candidate.name);
    if (request.limit_gigabytes) suggestion.note += fmt::format(", with {}=auto", keys::memory::kLimitGb);
  } else {
    suggestion.arguments = format_arguments(flags.gpu_flag_format, candidate.name);
    if (request.limit_gigabytes) suggestion.arguments.emplace_back(fmt::format("{}=auto", keys::memory::kLimitGb));
  }
  return suggestion;
}

}  // namespace

std::optional<Suggestion> suggest_larger_gpu(const PlanRequest& request, const Plan& plan) {
  int num_dry_runs = 0;
  for (const auto& candidate : list_gpu_candidates(request)) {
    const auto limit = compute_memory_limit(candidate.target, request.mode, std::nullopt, request.workload.world_size);
    if (candidate.target.memory_bytes <= request.gpu().memory_bytes ||
        limit.limit_bytes < plan.best_estimate.peaks.reserved_bytes ||
        !supports_precision(*candidate.target.gpu, request.job.precision)) {
      continue;
    }
    const int64_t bytes = measure_min_reserved_bytes(candidate.target, request, plan, limit.limit_bytes);
    if (bytes <= limit.limit_bytes) return make_gpu_suggestion(candidate, bytes, limit, request);
    if (++num_dry_runs == kMaxGpuDryRuns) break;
  }
  return std::nullopt;
}

namespace {

std::string format_memory_size(int64_t bytes) {
  return fmt::format("{:.1f} GB", to_gigabytes(bytes));
}

}  // namespace

std::vector<Suggestion> suggest_faster_settings(const Plan& plan, const CostModel& cost_model) {
  std::vector<Suggestion> suggestions;
  const auto add = [&](std::string note) {
    suggestions.push_back({.arguments = {}, .note = std::move(note), .makes_plan_fit = true});
  };
  const StepConfig& step_config = plan.best_estimate.step_config;
  const bool chose_recomputation =
      plan.constraints.recompute.is_auto() && step_config.recompute.vision + step_config.recompute.language > 0;
  if (chose_recomputation) {
    const auto missing_bytes =
        cost_model.predict_reserved_bytes(step_config.micro_batch_size, {}) - plan.limit.limit_bytes;
    const double seconds_without_recomputation =
        cost_model.predict_micro_batch_seconds(step_config.micro_batch_size, {});
    const double seconds_with_recomputation =
        cost_model.predict_micro_batch_seconds(step_config.micro_batch_size, step_config.recompute);
    const double gain = 1 - seconds_without_recomputation / seconds_with_recomputation;
    if (missing_bytes > 0 && gain >= kMinGain) {
      add(fmt::format("with {} more memory, nothing would be recomputed and steps would be about {:.0f} % shorter",
                      format_memory_size(missing_bytes), 100 * gain));
    }
  }
  const int64_t unused_bytes = plan.limit.limit_bytes - plan.best_estimate.peaks.reserved_bytes;
  if (step_config.micro_batch_size == plan.workload.samples_per_rank()) {
    add(fmt::format("each rank's share of the global batch is one micro-batch; {} remain free beyond the margin",
                    format_memory_size(unused_bytes)));
  }
  return suggestions;
}

std::vector<Suggestion> suggest_fitting_changes(const PlanRequest& request, const Plan& plan,
                                                PlanEvaluator& evaluator) {
  PlanChangeEvaluator change_evaluator(request, plan, evaluator);
  const bool is_for_gpu = std::holds_alternative<TargetGpu>(request.target);
  auto suggestions = make_suggestions(change_evaluator, plan.best_estimate.peaks.reserved_bytes, plan.detail);
  if (is_for_gpu) {
    if (auto suggestion = change_evaluator.suggest_larger_gpu()) suggestions.push_back(std::move(*suggestion));
  }
  append_required_memory(suggestions);
  if (suggestions.empty() && is_for_gpu) {
    suggestions.push_back(
        {.arguments = {},
         .note = "smaller samples, LoRA on 4-bit weights or a larger GPU do not suffice; use a smaller model",
         .makes_plan_fit = false});
  }
  return suggestions;
}

}  // namespace vlmtrain::planner
