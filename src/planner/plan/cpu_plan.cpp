#include "vlmtrain/planner/cpu_plan.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "planner/plan/plan_json.h"
#include "planner/search/cpu_search.h"
#include "planner/search/plan_split.h"
#include "planner/suggestions/change_evaluator.h"
#include "planner/suggestions/suggestions.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::planner {

namespace {

/// Memory of oneDNN primitives, MKL buffers, stacks, and small objects of the autograd graph.
/// Measured: docs/memory.md, "On the CPU".
constexpr int64_t kLibraryBytes = 200'000'000;
constexpr double kBytesPerGigabyte = 1e9;

/// Returns a FlagSyntax that outlives all evaluators. CPU plans have no flag for a GPU.
const FlagSyntax& get_default_flag_syntax() {
  static const FlagSyntax flags;
  return flags;
}

/// Evaluates changes of a CPU plan with dry runs on the meta device. Bytes are those of tensors
/// with malloc's free blocks.
class CpuChangeEvaluator final : public ChangeEvaluator {
 public:
  /// The arguments must outlive the evaluator.
  CpuChangeEvaluator(const CpuPlanRequest& request, CpuPlan& plan)
      : ChangeEvaluator({.job = request.job,
                         .workload = request.workload,
                         .constraints = request.constraints,
                         .sample_limits = request.sample_limits,
                         .flags = get_default_flag_syntax()}),
        request_(request),
        plan_(plan) {}

  std::optional<int64_t> measure_min_bytes(const Job& job, const Workload& workload,
                                           const StepConstraints& constraints) override {
    try {
      return make_search(job, workload, constraints).find_min_memory_estimate().peak_bytes;
    } catch (const c10::Error&) {
      return std::nullopt;  // do not suggest a change that cannot be dry-run
    }
  }

  std::optional<RelaxedPlan> replan(const StepConstraints& constraints) override {
    const auto estimate = make_search(request_.job, request_.workload, constraints).find();
    if (!estimate) return std::nullopt;
    return RelaxedPlan{estimate->step_config.micro_batch_size, total_bytes(estimate->peak_bytes)};
  }

  int64_t limit_bytes() const override { return plan_.limit.available_tensor_bytes; }
  int64_t total_bytes(int64_t bytes) const override { return plan_.limit.compute_total_bytes(bytes); }

  std::vector<Suggestion> suggest_more_memory() const override {
    std::vector<Suggestion> list;
    const auto add = [&](std::string argument, std::string note, const HostMemoryLimit& limit) {
      list.push_back({.arguments = {std::move(argument)},
                      .note = std::move(note),
                      .makes_plan_fit = true,
                      .total_bytes = limit.compute_total_bytes(plan_.needed_bytes())});
    };
    const HostMemoryLimit aggressive_limit = compute_memory_limit(MemoryMode::kAggressive, request_.limit_gigabytes);
    if (is_sufficient_limit(aggressive_limit)) {
      add(fmt::format("{}=aggressive", keys::memory::kMode),
          fmt::format("keeps {:g} % of the memory free instead of {:g} %", aggressive_limit.margin_percent,
                      plan_.limit.margin_percent),
          aggressive_limit);
    }
    if (!request_.limit_gigabytes) return list;
    const auto sufficient_gigabytes = find_min_sufficient_limit(
        *request_.limit_gigabytes, to_gigabytes(request_.available_memory.bytes), [this](double candidate_gigabytes) {
          return is_sufficient_limit(compute_memory_limit(request_.mode, candidate_gigabytes));
        });
    if (sufficient_gigabytes) {
      add(fmt::format("{}={:g}", keys::memory::kLimitGb, *sufficient_gigabytes),
          "allows the run more of the available memory", compute_memory_limit(request_.mode, sufficient_gigabytes));
    } else if (const HostMemoryLimit full_limit = compute_memory_limit(request_.mode, std::nullopt);
               is_sufficient_limit(full_limit)) {
      add(fmt::format("{}=auto", keys::memory::kLimitGb), "allows the run all available memory", full_limit);
    }
    return list;
  }

 private:
  CpuConfigSearch make_search(const Job& job, const Workload& workload, const StepConstraints& constraints) {
    return CpuConfigSearch(
        job, workload,
        {.constraints = constraints,
         .limit_bytes = limit_bytes(),
         .max_micro_batch_size = std::min(request_.max_micro_batch_size, workload.samples_per_rank())},
        plan_.planning_stats);
  }

  HostMemoryLimit compute_memory_limit(MemoryMode mode, std::optional<double> gigabytes) const {
    return compute_host_memory_limit(request_.available_memory, gigabytes, mode, request_.memory_requirements);
  }

  bool is_sufficient_limit(const HostMemoryLimit& limit) const {
    return plan_.needed_bytes() <= limit.available_tensor_bytes;
  }

  const CpuPlanRequest& request_;
  CpuPlan& plan_;
};

std::vector<Suggestion> suggest_cpu_changes(const CpuPlanRequest& request, CpuPlan& plan) {
  CpuChangeEvaluator evaluator(request, plan);
  auto suggestions = make_suggestions(evaluator, plan.needed_bytes(), plan.detail);
  append_required_memory(suggestions);
  return suggestions;
}

}  // namespace

HostMemoryLimit compute_host_memory_limit(memory::AvailableHostMemory available_memory,
                                          std::optional<double> limit_gigabytes, MemoryMode mode,
                                          const HostMemoryRequirements& memory_requirements) {
  if (limit_gigabytes && *limit_gigabytes * kBytesPerGigabyte < static_cast<double>(available_memory.bytes)) {
    available_memory = {.bytes = static_cast<int64_t>(*limit_gigabytes * kBytesPerGigabyte),
                        .limit_source = keys::memory::kLimitGb};
  }
  HostMemoryLimit limit{.available_memory = std::move(available_memory), .margin_percent = get_margin_percent(mode)};
  limit.margin_bytes = std::llround(static_cast<double>(limit.available_memory.bytes) * limit.margin_percent / 100);
  limit.process_bytes = memory_requirements.process_bytes;
  // Loader threads skip the samples of other ranks. Meanwhile, such a sample occupies a slot of the
  // queue.
  const int64_t num_skipped_samples = memory_requirements.world_size > 1 ? memory_requirements.num_loader_threads : 0;
  // The loader prefetches at most two steps.
  limit.prefetch_bytes = std::min(
      (2 * memory_requirements.samples_per_step + num_skipped_samples) * memory_requirements.largest_sample_bytes,
      compute_prefetch_bytes(limit.available_memory.bytes, memory_requirements.process_bytes));
  limit.decoded_samples_bytes = limit.prefetch_bytes +
                                memory_requirements.samples_per_step * memory_requirements.largest_sample_bytes +
                                memory_requirements.num_loader_threads *
                                    (memory_requirements.largest_sample_bytes + memory_requirements.decode_bytes);
  limit.library_bytes = kLibraryBytes;
  limit.available_tensor_bytes =
      std::max<int64_t>(0, limit.available_memory.bytes - limit.margin_bytes - limit.compute_total_bytes(0));
  return limit;
}

int64_t compute_prefetch_bytes(int64_t limit_bytes, int64_t used_bytes) {
  // A quarter leaves most of the free memory for tensors. Chosen without measurement.
  constexpr int64_t kPrefetchMemoryDivisor = 4;
  return std::max<int64_t>(1, (limit_bytes - used_bytes) / kPrefetchMemoryDivisor);
}

CpuPlan make_cpu_plan(const CpuPlanRequest& original_request) {
  const auto start = std::chrono::steady_clock::now();
  CpuPlanRequest request = original_request;
  apply_fixed_micro_batch_size(request.constraints, request.workload);
  request.job.world_size = request.workload.world_size;
  CpuPlan plan;
  plan.model = request.model;
  plan.job = request.job;
  plan.mode = request.mode;
  plan.limit = compute_host_memory_limit(request.available_memory, request.limit_gigabytes, request.mode,
                                         request.memory_requirements);
  plan.workload = request.workload;
  {  // ends the search's dry run, since only one may exist at a time
    CpuConfigSearch search(request.job, request.workload,
                           {.constraints = request.constraints,
                            .limit_bytes = plan.limit.available_tensor_bytes,
                            .max_micro_batch_size = request.max_micro_batch_size},
                           plan.planning_stats);
    const auto fitting_estimate = search.find();
    const CpuStepEstimate estimate = fitting_estimate ? *fitting_estimate : search.find_min_memory_estimate();
    plan.fits = fitting_estimate.has_value();
    plan.step_config = estimate.step_config;
    plan.peak_bytes = estimate.peak_tensor_bytes;
    plan.malloc_cached_bytes = estimate.peak_bytes - estimate.peak_tensor_bytes;
    plan.worst_batch = request.workload.worst_batches[estimate.worst_batch_index];
    plan.detail = search.compute_dry_run_detail(estimate);
  }
  if (plan.fits && request.with_split_plan) plan_cpu_split(request, plan);
  if (!plan.fits && request.with_suggestions) plan.suggestions = suggest_cpu_changes(request, plan);
  plan.planning_stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return plan;
}

int64_t measure_needed_cpu_bytes(const Job& job, const Workload& workload, const StepConfig& step_config) {
  PlanningStats planning_stats;
  return CpuConfigSearch(job, workload, {}, planning_stats).dry_run(step_config).peak_bytes;
}

nlohmann::ordered_json CpuPlan::to_json() const {
  auto json = make_plan_summary_json({.fits = fits,
                                      .model = model,
                                      .job = job,
                                      .mode = mode,
                                      .step_config = step_config,
                                      .workload = workload,
                                      .worst_batch = worst_batch,
                                      .detail = detail,
                                      .suggestions = suggestions,
                                      .planning_stats = planning_stats});
  auto memory = make_peak_bytes_json(detail.peak);
  memory.update({{"allocated_peak_bytes", peak_bytes},
                 {"total_bytes", total_bytes()},
                 {"fragmentation_bytes", malloc_cached_bytes},
                 {"process_bytes", limit.process_bytes},
                 {"prefetched_samples_bytes", limit.decoded_samples_bytes},
                 {"libraries_bytes", limit.library_bytes}});
  io::add_field_aliases(memory, {{"prefetched_samples_bytes", "samples_ahead_bytes"}});
  json.update({{"device", "cpu"},
               {"split", split ? split->to_json() : nullptr},
               {"available_bytes", limit.available_memory.bytes},
               {"available_limited_by", limit.available_memory.limit_source},
               {"margin_bytes", limit.margin_bytes},
               {"margin_percent", limit.margin_percent},
               {"limit_bytes", limit.available_tensor_bytes},
               {"memory", memory}});
  io::add_field_aliases(json,
                        {{"split", "cut"}, {"available_bytes", "room_bytes"}, {"available_limited_by", "room_bound"}});
  return json;
}

}  // namespace vlmtrain::planner
