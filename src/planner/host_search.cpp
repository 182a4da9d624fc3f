#include "planner/host_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/option_search.h"

namespace vlmtrain::planner {

namespace {

constexpr int64_t kSmallLossChunk = 128;

/// The first samples of a batch, the last standing for those that it lacks.
std::vector<SampleGroup> micro_batch_of(const SampleBatch& batch, int64_t size) {
  std::vector<SampleGroup> groups;
  for (int64_t i = 0; i < size; ++i) {
    add_sample(groups, batch.shapes[static_cast<size_t>(std::min(i, std::ssize(batch.shapes) - 1))]);
  }
  return groups;
}

}  // namespace

HostSearch::HostSearch(Job job, const Workload& workload, Settings settings, PlanningEffort& effort)
    : job_(std::move(job)), workload_(workload), settings_(std::move(settings)), effort_(effort), rehearsal_(job_) {
  all_blocks_ = {rehearsal_->vision_blocks(), rehearsal_->language_blocks()};
}

std::optional<HostStep> HostSearch::find() {
  if (rehearsal_->standing_bytes() > settings_.limit_bytes) return std::nullopt;
  const RecomputeOption& recompute = settings_.fixed.recompute;
  if (auto found = first_fitting(recompute.is_auto() ? models::RecomputeBlocks{} : recompute.blocks_of(all_blocks_))) {
    return found;
  }
  if (auto found = find_recomputing()) return found;
  return find_with_smaller_passes();
}

/// The largest micro-batch with so many blocks recomputed.
std::optional<HostStep> HostSearch::first_fitting(const models::RecomputeBlocks& recompute) {
  const auto sizes = micro_batch_sizes();
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    const HostStep step = rehearse(choices_at(*size, recompute));
    if (fits(step)) return step;
  }
  return std::nullopt;
}

/// The smallest micro-batch, as few blocks as fit; those of the tower first, whose activations are most of it.
std::optional<HostStep> HostSearch::find_recomputing() {
  if (!settings_.fixed.recompute.is_auto()) return std::nullopt;
  if (!fits(rehearse(recomputing(all_blocks())))) return std::nullopt;
  // The next to try is where a straight line between the two says that it begins to fit.
  int64_t fitting = all_blocks();
  int64_t too_few = 0;
  while (fitting - too_few > 1) {
    const auto least = static_cast<double>(rehearse(recomputing(fitting)).peak_bytes);
    const auto most = static_cast<double>(rehearse(recomputing(too_few)).peak_bytes);
    const double share = (most - static_cast<double>(settings_.limit_bytes)) / std::max(1.0, most - least);
    const auto guess = too_few + std::llround(std::ceil(share * static_cast<double>(fitting - too_few)));
    const int64_t next = std::clamp<int64_t>(guess, too_few + 1, fitting - 1);
    (fits(rehearse(recomputing(next))) ? fitting : too_few) = next;
  }
  return rehearse(recomputing(fitting));
}

Choices HostSearch::recomputing(int64_t blocks) const {
  const int64_t vision = pixel_rows() > 0 ? std::min(blocks, all_blocks_.vision) : 0;
  return choices_at(micro_batch_sizes().front(), {vision, std::min(blocks - vision, all_blocks_.language)});
}

std::optional<HostStep> HostSearch::find_with_smaller_passes() {
  const HostStep step = least();
  return fits(step) ? std::optional{step} : std::nullopt;
}

HostStep HostSearch::least() {
  const FixedChoices& fixed = settings_.fixed;
  Choices choices = recomputing(all_blocks());
  if (!fixed.recompute.is_auto()) choices.recompute = fixed.recompute.blocks_of(all_blocks_);
  HostStep least = rehearse(choices);
  const auto fits_with = [&](const Choices& tried) {
    const HostStep step = rehearse(tried);
    if (step.peak_bytes < least.peak_bytes) least = step;
    return fits(least);
  };
  if (fits(least)) return least;
  if (!fixed.loss_chunk_rows) choices.loss_chunk_rows = kSmallLossChunk;
  if (fits_with(choices) || fixed.vision_tiles_per_pass) return least;
  for (int64_t left = pixel_rows() * choices.micro_batch_size; left > 1;) {
    left = (left + 1) / 2;
    choices.vision_tiles_per_pass = left;
    if (fits_with(choices)) return least;
  }
  return least;
}

std::vector<int64_t> HostSearch::micro_batch_sizes() const {
  if (settings_.fixed.micro_batch_size) return {*settings_.fixed.micro_batch_size};
  auto sizes = divisors(workload_.samples_per_rank());
  std::erase_if(sizes, [this](int64_t size) { return size > settings_.largest_micro_batch; });
  return sizes;
}

Choices HostSearch::choices_at(int64_t size, const models::RecomputeBlocks& recompute) const {
  const FixedChoices& fixed = settings_.fixed;
  return {.micro_batch_size = size,
          .recompute = recompute,
          .vision_tiles_per_pass = fixed.vision_tiles_per_pass.value_or(0),
          .loss_chunk_rows = fixed.loss_chunk_rows.value_or(Choices{}.loss_chunk_rows),
          .expandable_segments = fixed.expandable_segments};
}

int64_t HostSearch::pixel_rows() const {
  int64_t most = 0;
  for (const auto& batch : workload_.candidates) most = std::max(most, batch.shapes.front().pixel_rows);
  return most;
}

HostStep HostSearch::rehearse(const Choices& choices) {
  const auto known = std::ranges::find(rehearsed_, choices, &HostStep::choices);
  if (known != rehearsed_.end()) return *known;
  if (!rehearsal_) rehearsal_.emplace(job_);
  HostStep worst{.choices = choices};
  for (size_t i = 0; i < workload_.candidates.size(); ++i) {
    const Outcome outcome =
        rehearsal_->step(choices, micro_batch_of(workload_.candidates[i], choices.micro_batch_size));
    ++effort_.rehearsals;
    effort_.rehearsal_seconds += outcome.seconds;
    const StepPeaks peaks = outcome.peaks();
    if (peaks.reserved_bytes > worst.peak_bytes) worst = {choices, peaks.allocated_bytes, peaks.reserved_bytes, i};
  }
  rehearsed_.push_back(worst);
  return worst;
}

RehearsalDetail HostSearch::detail_of(const HostStep& step) {
  rehearsal_.reset();
  return *HostRehearsal(job_, HostRehearsal::Detail::kPeakByComponent)
              .step(step.choices, micro_batch_of(workload_.candidates[step.batch], step.choices.micro_batch_size))
              .detail;
}

}  // namespace vlmtrain::planner
