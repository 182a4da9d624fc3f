#include "planner/search/cpu_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/search/config_search.h"

namespace vlmtrain::planner {

namespace {

/// Rows of the smallest loss chunks to try. Smaller ones run more operations. Not tuned.
constexpr int64_t kCpuMinLossChunkRows = 128;

/// Returns the first `size` samples of a batch. The last one is repeated as needed.
std::vector<SampleGroup> make_micro_batch(const SampleBatch& batch, int64_t size) {
  std::vector<SampleGroup> groups;
  for (int64_t i = 0; i < size; ++i) {
    add_sample(groups, batch.shapes[static_cast<size_t>(std::min(i, std::ssize(batch.shapes) - 1))]);
  }
  return groups;
}

}  // namespace

CpuConfigSearch::CpuConfigSearch(Job job, const Workload& workload, Settings settings, PlanningStats& planning_stats)
    : job_(std::move(job)),
      workload_(workload),
      settings_(std::move(settings)),
      planning_stats_(planning_stats),
      dry_run_(job_) {
  total_block_counts_ = {dry_run_->num_vision_blocks(), dry_run_->num_language_blocks()};
}

std::optional<CpuStepEstimate> CpuConfigSearch::find() {
  if (dry_run_->persistent_bytes() > settings_.limit_bytes) return std::nullopt;
  const RecomputeOption& recompute = settings_.constraints.recompute;
  if (auto estimate = find_largest_fitting_micro_batch(
          recompute.is_auto() ? models::RecomputeBlockCounts{} : recompute.resolve_block_counts(total_block_counts_))) {
    return estimate;
  }
  if (auto estimate = find_estimate_with_recomputation()) return estimate;
  return find_smaller_pass_estimate();
}

/// Returns the largest micro-batch with this recomputation that fits.
std::optional<CpuStepEstimate> CpuConfigSearch::find_largest_fitting_micro_batch(
    const models::RecomputeBlockCounts& recompute) {
  const auto sizes = list_micro_batch_sizes();
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    const CpuStepEstimate estimate = dry_run(make_step_config(*size, recompute));
    if (fits(estimate)) return estimate;
  }
  return std::nullopt;
}

/// Returns the smallest micro-batch with as few recomputed blocks as fit. Blocks of the vision
/// tower come first, since they have most of the activations.
std::optional<CpuStepEstimate> CpuConfigSearch::find_estimate_with_recomputation() {
  if (!settings_.constraints.recompute.is_auto()) return std::nullopt;
  if (!fits(dry_run(make_config_with_recomputation(num_blocks())))) return std::nullopt;
  // Bisection by interpolation: the next guess is where the line through both bounds crosses the
  // limit.
  int64_t fitting_num_blocks = num_blocks();
  int64_t failing_num_blocks = 0;
  while (fitting_num_blocks - failing_num_blocks > 1) {
    const auto fitting_bytes =
        static_cast<double>(dry_run(make_config_with_recomputation(fitting_num_blocks)).peak_bytes);
    const auto failing_bytes =
        static_cast<double>(dry_run(make_config_with_recomputation(failing_num_blocks)).peak_bytes);
    const double interpolation =
        (failing_bytes - static_cast<double>(settings_.limit_bytes)) / std::max(1.0, failing_bytes - fitting_bytes);
    const auto guessed_num_blocks =
        failing_num_blocks +
        std::llround(std::ceil(interpolation * static_cast<double>(fitting_num_blocks - failing_num_blocks)));
    const int64_t next_num_blocks =
        std::clamp<int64_t>(guessed_num_blocks, failing_num_blocks + 1, fitting_num_blocks - 1);
    (fits(dry_run(make_config_with_recomputation(next_num_blocks))) ? fitting_num_blocks : failing_num_blocks) =
        next_num_blocks;
  }
  return dry_run(make_config_with_recomputation(fitting_num_blocks));
}

StepConfig CpuConfigSearch::make_config_with_recomputation(int64_t blocks) const {
  const int64_t vision = find_max_pixel_rows() > 0 ? std::min(blocks, total_block_counts_.vision) : 0;
  return make_step_config(list_micro_batch_sizes().front(),
                          {vision, std::min(blocks - vision, total_block_counts_.language)});
}

std::optional<CpuStepEstimate> CpuConfigSearch::find_smaller_pass_estimate() {
  const CpuStepEstimate estimate = find_min_memory_estimate();
  return fits(estimate) ? std::optional{estimate} : std::nullopt;
}

CpuStepEstimate CpuConfigSearch::find_min_memory_estimate() {
  const StepConstraints& constraints = settings_.constraints;
  StepConfig step_config = make_config_with_recomputation(num_blocks());
  if (!constraints.recompute.is_auto())
    step_config.recompute = constraints.recompute.resolve_block_counts(total_block_counts_);
  CpuStepEstimate min_memory_estimate = dry_run(step_config);
  const auto update_min_memory_estimate = [&](const StepConfig& candidate) {
    const CpuStepEstimate estimate = dry_run(candidate);
    if (estimate.peak_bytes < min_memory_estimate.peak_bytes) min_memory_estimate = estimate;
    return fits(min_memory_estimate);
  };
  if (fits(min_memory_estimate)) return min_memory_estimate;
  if (!constraints.loss_chunk_rows) step_config.loss_chunk_rows = kCpuMinLossChunkRows;
  if (update_min_memory_estimate(step_config) || constraints.vision_tiles_per_pass) return min_memory_estimate;
  for (int64_t tiles_per_pass = find_max_pixel_rows() * step_config.micro_batch_size; tiles_per_pass > 1;) {
    tiles_per_pass = (tiles_per_pass + 1) / 2;
    step_config.vision_tiles_per_pass = tiles_per_pass;
    if (update_min_memory_estimate(step_config)) return min_memory_estimate;
  }
  return min_memory_estimate;
}

std::vector<int64_t> CpuConfigSearch::list_micro_batch_sizes() const {
  if (settings_.constraints.micro_batch_size) return {*settings_.constraints.micro_batch_size};
  auto sizes = find_divisors(workload_.samples_per_rank());
  std::erase_if(sizes, [this](int64_t size) { return size > settings_.max_micro_batch_size; });
  return sizes;
}

StepConfig CpuConfigSearch::make_step_config(int64_t size, const models::RecomputeBlockCounts& recompute) const {
  const StepConstraints& constraints = settings_.constraints;
  return {.micro_batch_size = size,
          .recompute = recompute,
          .vision_tiles_per_pass = constraints.vision_tiles_per_pass.value_or(0),
          .loss_chunk_rows = constraints.loss_chunk_rows.value_or(StepConfig{}.loss_chunk_rows),
          .expandable_segments = constraints.expandable_segments};
}

int64_t CpuConfigSearch::find_max_pixel_rows() const {
  int64_t max_pixel_rows = 0;
  for (const auto& batch : workload_.worst_batches)
    max_pixel_rows = std::max(max_pixel_rows, batch.shapes.front().pixel_rows);
  return max_pixel_rows;
}

CpuStepEstimate CpuConfigSearch::dry_run(const StepConfig& step_config) {
  const auto previous = std::ranges::find(estimates_, step_config, &CpuStepEstimate::step_config);
  if (previous != estimates_.end()) return *previous;
  if (!dry_run_) dry_run_.emplace(job_);
  CpuStepEstimate worst_estimate{.step_config = step_config};
  for (size_t i = 0; i < workload_.worst_batches.size(); ++i) {
    const DryRunResult result =
        dry_run_->step(step_config, make_micro_batch(workload_.worst_batches[i], step_config.micro_batch_size));
    ++planning_stats_.num_dry_runs;
    planning_stats_.dry_run_seconds += result.seconds;
    const StepPeaks peaks = result.compute_max_peaks();
    if (peaks.reserved_bytes > worst_estimate.peak_bytes)
      worst_estimate = {step_config, peaks.allocated_bytes, peaks.reserved_bytes, i};
  }
  estimates_.push_back(worst_estimate);
  return worst_estimate;
}

DryRunDetail CpuConfigSearch::compute_dry_run_detail(const CpuStepEstimate& estimate) {
  dry_run_.reset();
  return *CpuDryRun(job_, CpuDryRun::Detail::kPeakByComponent)
              .step(estimate.step_config, make_micro_batch(workload_.worst_batches[estimate.worst_batch_index],
                                                           estimate.step_config.micro_batch_size))
              .detail;
}

}  // namespace vlmtrain::planner
