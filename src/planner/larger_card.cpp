#include "planner/larger_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "planner/arguments.h"
#include "planner/frugal.h"
#include "planner/search/plan_evaluator.h"

namespace vlmtrain::planner {

namespace {

/// Sizes that cards are sold with, in gigabytes.
constexpr std::array kGpuSizes{4.0,  6.0,  8.0,  10.0, 11.0, 12.0, 16.0, 20.0, 22.0,  24.0,  32.0,
                               40.0, 44.0, 48.0, 64.0, 72.0, 80.0, 94.0, 96.0, 141.0, 180.0, 192.0};
/// Cards that are rehearsed: another architecture may need a little more.
constexpr int kMaxDryRuns = 3;

struct GpuCandidate {
  std::string name;  ///< as it is typed
  TargetGpu target;
};

std::vector<GpuCandidate> list_candidates(const PlanRequest& request) {
  std::vector<GpuCandidate> list;
  if (request.flags.gpu_by_size || request.flags.gpu.empty()) {
    for (const double size : kGpuSizes) list.push_back({fmt::format("{:g}", size), make_target_gpu(size)});
  } else {
    for (const auto& gpu : memory::gpus()) {
      // Nobody puts a laptop's card into their machine.
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

/// The least that the plan reserves on another card.
int64_t dry_run_min_bytes(const TargetGpu& target, const PlanRequest& request, const Plan& plan, int64_t limit_bytes) {
  const DryRunDetail& detail = plan.detail;
  PlanEvaluator evaluator(request.job, target, request.workload, limit_bytes);
  const auto configs =
      make_min_memory_configs(request.constraints, request.workload, {detail.vision_blocks, detail.language_blocks});
  const auto min_bytes = find_min_reserved_bytes(evaluator, request.job, request.workload, configs, limit_bytes,
                                                 std::numeric_limits<double>::infinity());
  return min_bytes.value_or(std::numeric_limits<int64_t>::max());
}

Suggestion make_suggestion(const GpuCandidate& candidate, int64_t reserved_bytes, const MemoryLimit& limit,
                           const PlanRequest& request) {
  const FlagSyntax& flags = request.flags;
  Suggestion suggestion{.arguments = {},
                        .note = "a larger card",
                        .makes_it_fit = true,
                        .total_bytes = reserved_bytes + limit.context_bytes + limit.communication_bytes};
  if (flags.gpu.empty()) {
    suggestion.note = fmt::format("a card of {} GB or more", candidate.name);
    if (request.limit_gigabytes) suggestion.note += ", with memory.limit_gb=auto";
  } else {
    suggestion.arguments = format_arguments(flags.gpu, candidate.name);
    if (request.limit_gigabytes) suggestion.arguments.emplace_back("memory.limit_gb=auto");
  }
  return suggestion;
}

}  // namespace

std::optional<Suggestion> suggest_larger_gpu(const PlanRequest& request, const Plan& plan) {
  int num_dry_runs = 0;
  for (const auto& candidate : list_candidates(request)) {
    const auto limit = compute_memory_limit(candidate.target, request.mode, std::nullopt, request.workload.world_size);
    if (candidate.target.memory_bytes <= request.target.memory_bytes ||
        limit.limit_bytes < plan.best.peaks.reserved_bytes ||
        !supports_precision(*candidate.target.gpu, request.job.precision)) {
      continue;
    }
    const int64_t bytes = dry_run_min_bytes(candidate.target, request, plan, limit.limit_bytes);
    if (bytes <= limit.limit_bytes) return make_suggestion(candidate, bytes, limit, request);
    if (++num_dry_runs == kMaxDryRuns) break;
  }
  return std::nullopt;
}

}  // namespace vlmtrain::planner
