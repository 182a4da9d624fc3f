#include "planner/search/plan_evaluator.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::planner {

namespace {

/// Sizes of the smaller batches before the two worst ones, as fractions of the worst. Not tuned.
constexpr double kMediumBatchFraction = 0.6;
constexpr double kSmallBatchFraction = 0.3;
/// Maximum number of micro-batches in a dry run of an average step, whose micro-batches differ. Not
/// tuned.
constexpr int64_t kMaxAverageStepMicroBatches = 32;

/// Returns the error for samples that exceed the memory of the virtual GPU.
UserError make_samples_too_large_error(const SampleBatch& batch, const StepConfig& step_config) {
  const data::SampleShape& shape = batch.shapes.front();
  const bool is_single_sample = step_config.micro_batch_size == 1;
  return UserError(
      ExitCode::kDoesNotFit,
      fmt::format(
          "{}: {}, {}{} need more than {} GB, more than any GPU has; lower {} or {}{}",
          batch.first_sample_id.empty() ? "a sample" : "sample " + batch.first_sample_id,
          pluralize(shape.tokens, "token"), data::describe_media(shape),
          is_single_sample ? "" : fmt::format(" in a micro-batch of {} such samples", step_config.micro_batch_size),
          kUnlimitedBytes / 1'000'000'000, keys::data::kMaxLength, keys::data::kImageMaxPixels,
          is_single_sample ? "" : fmt::format(", or {}", keys::training::kMicroBatchSize)));
}

/// Returns the samples with `share` of their pixels and text tokens, 0 < share ≤ 1. The shapes
/// remain valid for data::make_meta_sample().
std::vector<SampleGroup> scale_sample_sizes(std::vector<SampleGroup> groups, double share) {
  const auto scale = [share](int64_t number, int64_t min) {
    return std::clamp(std::llround(static_cast<double>(number) * share), static_cast<long long>(std::min(min, number)),
                      static_cast<long long>(number));
  };
  for (auto& [shape, count] : groups) {
    shape = data::scale_pixels(std::move(shape), share);
    const int64_t text = scale(shape.tokens - shape.image_tokens, 2);
    shape.label_tokens = std::min<int64_t>(scale(shape.label_tokens, 1), text - 1);
    shape.masks = std::min(shape.masks, shape.label_tokens);
    shape.num_images_with_masks = std::min(shape.num_images_with_masks, shape.masks);
    shape.tokens = shape.image_tokens + text;
  }
  return groups;
}

}  // namespace

PlanEvaluator::PlanEvaluator(Settings settings) : settings_(std::move(settings)) {
  const Workload& workload = settings_.workload;
  if (const auto* const gpu = std::get_if<TargetGpu>(&settings_.target))
    interconnect_ = make_interconnect(*gpu->gpu, workload.world_size, workload.num_nodes, workload.network_gbit);
  backend_ = make_backend(settings_.job, settings_.target);
  if (settings_.worst_cases == WorstCases::kAll || traits().is_cheap) {
    worst_cases_ = workload.worst_batches;
  } else {
    worst_cases_.push_back(find_heaviest_batch());
  }
}

const SampleBatch& PlanEvaluator::find_heaviest_batch() {
  const std::vector<SampleBatch>& candidates = settings_.workload.worst_batches;
  const StepConfig step_config{.recompute = {}, .expandable_segments = settings_.expandable_segments};
  size_t heaviest_batch_index = 0;
  int64_t max_bytes = 0;
  for (size_t i = 0; candidates.size() > 1 && i < candidates.size(); ++i) {
    if (i + 1 < candidates.size()) prefetch_probe(step_config, candidates[i + 1]);
    const int64_t bytes = probe(step_config, candidates[i]).compute_max_peaks().reserved_bytes;
    if (bytes > max_bytes) heaviest_batch_index = i;
    max_bytes = std::max(max_bytes, bytes);
  }
  return candidates[heaviest_batch_index];
}

int64_t PlanEvaluator::max_micro_batch_size() const {
  const auto* const host = std::get_if<TargetHost>(&settings_.target);
  return host == nullptr ? settings_.workload.samples_per_rank() : host->max_micro_batch_size;
}

void PlanEvaluator::add_worst_case(const SampleBatch& batch) {
  worst_cases_.push_back(batch);
  evaluated_configs_.clear();
}

DryRunResult PlanEvaluator::run_request(const DryRunRequest& request) {
  DryRunResult result = backend_->dry_run(request);
  ++planning_stats_.num_dry_runs;
  planning_stats_.dry_run_seconds += result.seconds;
  if (!result.collectives.gradient_reductions.empty()) collectives_ = result.collectives;
  return result;
}

int64_t PlanEvaluator::compute_num_dry_run_micro_batches(const StepConfig& step_config) const {
  return std::min(traits().num_distinct_micro_batches,
                  settings_.workload.samples_per_rank() / step_config.micro_batch_size);
}

DryRunRequest PlanEvaluator::make_full_request(const StepConfig& step_config, const SampleBatch& batch) const {
  const int64_t samples = compute_num_dry_run_micro_batches(step_config) * step_config.micro_batch_size;
  const auto worst_samples = take_samples(batch.shapes, samples);
  DryRunRequest request{.step_config = step_config,
                        .steps = {worst_samples},
                        .with_costs = traits().predicts_time,
                        .with_detail = !traits().is_detail_expensive};
  if (traits().fragments_memory) {
    const auto micro_batch = take_samples(batch.shapes, step_config.micro_batch_size);
    request.steps = {scale_sample_sizes(micro_batch, kMediumBatchFraction), worst_samples,
                     scale_sample_sizes(micro_batch, kSmallBatchFraction), worst_samples};
  }
  return request;
}

double PlanEvaluator::compute_micro_batch_seconds(const StepConfig& step_config, const StepCosts& costs) const {
  const double passes_seconds =
      costs.passes_seconds / static_cast<double>(compute_num_dry_run_micro_batches(step_config));
  return costs.link.compute_total(passes_seconds, /*micro_batches=*/1);
}

double PlanEvaluator::compute_step_seconds(const StepConfig& step_config, const StepCosts& costs) const {
  const int64_t num_micro_batches = settings_.workload.samples_per_rank() / step_config.micro_batch_size;
  const auto micro_batches = static_cast<double>(num_micro_batches);
  const double micro_batch_seconds = compute_micro_batch_seconds(step_config, costs);
  return micro_batches * micro_batch_seconds + costs.optimizer.seconds +
         predict_communication(micro_batch_seconds, num_micro_batches).exposed_seconds;
}

CommunicationEstimate PlanEvaluator::predict_communication(double micro_batch_seconds,
                                                           int64_t num_micro_batches) const {
  if (!interconnect_) return {};
  return estimate_communication(*interconnect_, collectives_, micro_batch_seconds, num_micro_batches);
}

double PlanEvaluator::compute_tokens_per_step(const SampleBatch& batch) const {
  double tokens = 0;
  for (const auto& group : take_samples(batch.shapes, settings_.workload.samples_per_rank())) {
    tokens += static_cast<double>(group.shape.tokens * group.count);
  }
  return tokens * static_cast<double>(settings_.workload.world_size);
}

CommunicationEstimate PlanEvaluator::predict_communication(const StepConfig& step_config) const {
  const StepCosts& costs = *find_evaluated_config(step_config)->result.costs;
  return predict_communication(compute_micro_batch_seconds(step_config, costs),
                               settings_.workload.samples_per_rank() / step_config.micro_batch_size);
}

std::vector<PlanEvaluator::EvaluatedConfig>::const_iterator PlanEvaluator::find_evaluated_config(
    const StepConfig& step_config) const {
  return std::find_if(evaluated_configs_.begin(), evaluated_configs_.end(),
                      [&](const EvaluatedConfig& entry) { return entry.estimate.step_config == step_config; });
}

const StepEstimate* PlanEvaluator::find(const StepConfig& step_config) const {
  const auto entry = find_evaluated_config(step_config);
  return entry == evaluated_configs_.end() ? nullptr : &entry->estimate;
}

std::vector<const StepEstimate*> PlanEvaluator::list_estimates() const {
  std::vector<const StepEstimate*> estimates;
  for (const auto& entry : evaluated_configs_) estimates.push_back(&entry.estimate);
  return estimates;
}

StepEstimate PlanEvaluator::dry_run(const StepConfig& step_config) {
  if (const StepEstimate* const estimate = find(step_config)) return *estimate;
  std::optional<EvaluatedConfig> largest;
  for (size_t i = 0; i < worst_cases_.size(); ++i) {
    if (i + 1 < worst_cases_.size()) backend_->prefetch(make_full_request(step_config, worst_cases_[i + 1]));
    DryRunResult result = run_request(make_full_request(step_config, worst_cases_[i]));
    if (result.ran_out_of_memory) throw make_samples_too_large_error(worst_cases_[i], step_config);
    if (largest && result.compute_max_peaks().reserved_bytes <= largest->estimate.peaks.reserved_bytes) continue;
    StepEstimate estimate{.step_config = step_config, .peaks = result.compute_max_peaks()};
    if (result.costs) {
      estimate.step_seconds = compute_step_seconds(step_config, *result.costs);
      estimate.tokens_per_second = compute_tokens_per_step(worst_cases_[i]) / estimate.step_seconds;
    }
    estimate.fits = estimate.peaks.reserved_bytes <= settings_.limit_bytes;
    estimate.is_from_dry_run = true;
    largest = EvaluatedConfig{estimate, std::move(result), i, !traits().is_detail_expensive};
  }
  evaluated_configs_.push_back(std::move(*largest));
  return evaluated_configs_.back().estimate;
}

std::vector<PlanEvaluator::Probe>::const_iterator PlanEvaluator::find_probe(const StepConfig& step_config,
                                                                            ProbeDetail detail) const {
  return std::find_if(probes_.begin(), probes_.end(),
                      [&](const Probe& probe) { return probe.step_config == step_config && probe.detail == detail; });
}

DryRunResult PlanEvaluator::probe(const StepConfig& step_config, ProbeDetail detail) {
  const auto probe_entry = find_probe(step_config, detail);
  if (probe_entry != probes_.end()) return probe_entry->result;
  probes_.push_back({step_config, detail, probe(step_config, first_worst_case(), detail)});
  return probes_.back().result;
}

DryRunRequest PlanEvaluator::make_probe_request(const StepConfig& step_config, const SampleBatch& batch,
                                                ProbeDetail detail) const {
  return {.step_config = step_config,
          .steps = {take_samples(batch.shapes, step_config.micro_batch_size)},
          .with_costs = detail != ProbeDetail::kPeaksOnly && traits().predicts_time,
          .with_detail = detail == ProbeDetail::kWithCostsAndDetail && !traits().is_detail_expensive};
}

DryRunResult PlanEvaluator::probe(const StepConfig& step_config, const SampleBatch& batch, ProbeDetail detail) {
  DryRunResult result = run_request(make_probe_request(step_config, batch, detail));
  if (result.ran_out_of_memory) throw make_samples_too_large_error(batch, step_config);
  return result;
}

void PlanEvaluator::prefetch(const StepConfig& step_config) {
  if (find(step_config) == nullptr) backend_->prefetch(make_full_request(step_config, worst_cases_.front()));
}

void PlanEvaluator::prefetch_probe(const StepConfig& step_config, ProbeDetail detail) {
  if (find_probe(step_config, detail) == probes_.end()) prefetch_probe(step_config, first_worst_case(), detail);
}

void PlanEvaluator::prefetch_probe(const StepConfig& step_config, const SampleBatch& batch, ProbeDetail detail) {
  backend_->prefetch(make_probe_request(step_config, batch, detail));
}

const DryRunResult& PlanEvaluator::get_dry_run_result(const StepConfig& step_config, bool with_timeline) {
  const auto entry = evaluated_configs_.begin() + (find_evaluated_config(step_config) - evaluated_configs_.cbegin());
  VLMTRAIN_CHECK(entry != evaluated_configs_.end(), "the StepConfig has not been dry-run");
  DryRunRequest request = make_full_request(step_config, worst_cases_[entry->batch]);
  if (with_timeline && entry->result.detail->timeline.empty()) {
    request.with_timeline = true;
    entry->result = run_request(request);
  } else if (traits().is_detail_expensive && !entry->has_detail) {
    request.with_detail = true;
    entry->result = backend_->dry_run(request);  // not counted: repeats a counted dry run
    entry->has_detail = true;
  }
  return entry->result;
}

const SampleBatch& PlanEvaluator::get_worst_case(const StepConfig& step_config) const {
  const auto entry = find_evaluated_config(step_config);
  VLMTRAIN_CHECK(entry != evaluated_configs_.end(), "the StepConfig has not been dry-run");
  return worst_cases_[entry->batch];
}

int64_t PlanEvaluator::measure_reserved_bytes(const StepConfig& step_config, const SampleBatch& batch) {
  DryRunRequest request = make_full_request(step_config, batch);
  request.with_costs = request.with_detail = false;
  return run_request(request).compute_max_peaks().reserved_bytes;
}

AverageStepEstimate PlanEvaluator::dry_run_average_step(const StepConfig& step_config,
                                                        const std::vector<data::SampleShape>& samples) {
  AverageStepEstimate average_step_estimate;
  std::vector<SampleGroup> dry_run_sample_groups;
  double tokens = 0;
  const int64_t max_samples = kMaxAverageStepMicroBatches * step_config.micro_batch_size;
  for (size_t i = 0; i < samples.size(); ++i) {
    tokens += static_cast<double>(samples[i].tokens);
    if (static_cast<int64_t>(i) < max_samples) add_sample(dry_run_sample_groups, samples[i]);
    const auto group = std::ranges::find(average_step_estimate.samples, samples[i], &SampleGroup::shape);
    if (group == average_step_estimate.samples.end()) {
      average_step_estimate.samples.push_back({samples[i], 1});
    } else {
      ++group->count;
    }
  }
  const DryRunResult result = run_request(
      {.step_config = step_config, .steps = {dry_run_sample_groups, dry_run_sample_groups}, .with_costs = true});
  if (result.ran_out_of_memory)
    throw make_samples_too_large_error({.shapes = samples, .first_sample_id = {}}, step_config);
  average_step_estimate.peaks = result.compute_max_peaks();
  const auto num_samples = static_cast<double>(samples.size());
  const double extrapolation_factor = std::max(1.0, num_samples / static_cast<double>(max_samples));
  const double optimizer_seconds = result.costs->optimizer.seconds;
  const double forward_backward_seconds = result.costs->total.seconds - optimizer_seconds;
  const double micro_batch_seconds = forward_backward_seconds * static_cast<double>(step_config.micro_batch_size) /
                                     std::min(num_samples, static_cast<double>(max_samples));
  average_step_estimate.step_seconds =
      extrapolation_factor * forward_backward_seconds + optimizer_seconds +
      predict_communication(micro_batch_seconds,
                            std::llround(extrapolation_factor * forward_backward_seconds / micro_batch_seconds))
          .exposed_seconds;
  const auto num_ranks = static_cast<double>(settings_.workload.world_size);
  average_step_estimate.tokens_per_second = num_ranks * tokens / average_step_estimate.step_seconds;
  average_step_estimate.samples_per_second = num_ranks * num_samples / average_step_estimate.step_seconds;
  return average_step_estimate;
}

std::optional<int64_t> PlanEvaluator::measure_reserved_bytes(const Job& job, const StepConfig& step_config,
                                                             const std::vector<SampleBatch>& worst_batches) {
  backend_->set_job(job);
  std::optional<int64_t> max_bytes = 0;
  for (const auto& candidate : worst_batches) {
    DryRunRequest request = make_full_request(step_config, candidate);
    request.with_costs = request.with_detail = false;
    const DryRunResult result = run_request(request);
    if (result.ran_out_of_memory) {
      max_bytes.reset();
      break;
    }
    max_bytes = std::max(*max_bytes, result.compute_max_peaks().reserved_bytes);
  }
  backend_->set_job(settings_.job);
  return max_bytes;
}

namespace {

/// Rows of the smaller loss chunks to try. Very small chunks launch many kernels, so that they are
/// the last resort. Not tuned.
constexpr int64_t kSmallLossChunkRows = 128;
constexpr int64_t kVerySmallLossChunkRows = 16;
/// Maximum number of vision passes to try. Dry runs with more passes take long. Not tuned.
constexpr int64_t kMaxVisionPasses = 8;

}  // namespace

std::vector<StepConfig> make_min_memory_configs(const StepConstraints& constraints, const Workload& workload,
                                                const models::RecomputeBlockCounts& blocks, int64_t loss_chunk_rows) {
  StepConfig step_config{
      .micro_batch_size = constraints.micro_batch_size.value_or(1),
      .recompute = constraints.recompute.is_auto() ? blocks : constraints.recompute.resolve_block_counts(blocks),
      .vision_tiles_per_pass = constraints.vision_tiles_per_pass.value_or(0),
      .loss_chunk_rows = constraints.loss_chunk_rows.value_or(loss_chunk_rows),
      .expandable_segments = constraints.expandable_segments,
      .copies_ahead = false};
  std::vector<StepConfig> min_memory_configs{step_config};
  const bool has_vision_tiles =
      std::any_of(workload.worst_batches.begin(), workload.worst_batches.end(),
                  [](const SampleBatch& batch) { return batch.shapes.front().pixel_rows > 0; });
  if (has_vision_tiles && !constraints.vision_tiles_per_pass) {
    step_config.vision_tiles_per_pass = 1;
    min_memory_configs.push_back(step_config);
  }
  return min_memory_configs;
}

std::optional<int64_t> find_min_reserved_bytes(PlanEvaluator& evaluator, const Job& job, const Workload& workload,
                                               const std::vector<StepConfig>& configs, int64_t limit_bytes,
                                               double give_up_bytes) {
  std::optional<int64_t> min_bytes;
  for (const StepConfig& step_config : configs) {
    if (min_bytes && static_cast<double>(*min_bytes) > give_up_bytes) break;
    const auto bytes = evaluator.measure_reserved_bytes(job, step_config, workload.worst_batches);
    if (bytes && (!min_bytes || *bytes < *min_bytes)) min_bytes = bytes;
    if (min_bytes && *min_bytes <= limit_bytes) break;
  }
  return min_bytes;
}

std::vector<StepConfig> list_smaller_pass_configs(const StepConfig& step_config, const StepConstraints& constraints,
                                                  int64_t tiles, const models::RecomputeBlockCounts& blocks,
                                                  int64_t min_loss_chunk_rows) {
  const auto make_config = [&](int64_t vision_passes, int64_t loss_chunk_rows) {
    StepConfig smaller_config = step_config;
    if (constraints.recompute.is_auto()) smaller_config.recompute = blocks;
    if (!constraints.vision_tiles_per_pass && vision_passes > 1)
      smaller_config.vision_tiles_per_pass = (tiles + vision_passes - 1) / vision_passes;
    if (!constraints.loss_chunk_rows) smaller_config.loss_chunk_rows = loss_chunk_rows;
    return smaller_config;
  };
  std::vector<StepConfig> step_configs{step_config};
  const int64_t max_vision_passes =
      constraints.vision_tiles_per_pass ? 1 : std::clamp<int64_t>(tiles, 1, kMaxVisionPasses);
  for (int64_t passes = 1; passes <= max_vision_passes; passes *= 2)
    step_configs.push_back(make_config(passes, kSmallLossChunkRows));
  step_configs.push_back(make_config(max_vision_passes, std::max(kVerySmallLossChunkRows, min_loss_chunk_rows)));
  return step_configs;
}

}  // namespace vlmtrain::planner
