#include "planner/search/config_search.h"

#include <algorithm>
#include <limits>
#include <set>

namespace vlmtrain::planner {

namespace {

/// Maximum number of guesses that the search dry-runs. Not tuned.
constexpr int64_t kMaxDryRunGuesses = 16;
/// If the predicted memory of the next larger micro-batch exceeds this multiple of the limit, it is
/// not dry-run. The prediction starts from a dry run. Not tuned.
constexpr double kMaxDryRunMemoryRatio = 1.1;
/// The same for full recomputation, whose prediction has a larger error
/// (find_untried_min_memory_config()). Not tuned.
constexpr double kMaxFullRecomputeMemoryRatio = 1.3;
/// Maximum number of micro-batch sizes among the alternatives that do not fit even with full
/// recomputation.
constexpr int64_t kMaxTooLargeAlternatives = 2;
/// If smaller vision passes affect only fragmentation, they are dry-run for samples with at most
/// this many images and frames. Dry runs with more of them are slow. Not tuned.
constexpr int64_t kMaxImagesForVisionPasses = 16;

/// One call of search_step_config().
class StepConfigSearch {
 public:
  StepConfigSearch(PlanEvaluator& evaluator, const Workload& workload, const StepConstraints& constraints,
                   int64_t limit_bytes);

  StepConfigSearchResult run();

 private:
  std::optional<StepEstimate> find_fitting_estimate();
  std::optional<StepEstimate> dry_run_fastest_config();
  void run_probes();
  StepEstimate find_min_memory_estimate();
  std::vector<StepEstimate> list_alternatives() const;
  StepConfig make_default_step_config() const;
  /// `size` is the micro-batch size, `recompute_level` an index in recompute_order_.
  StepConfig make_step_config(int64_t size, size_t recompute_level) const;
  StepConfig make_smallest_config() const;
  /// Returns the measured value of a StepConfig that has been dry-run, otherwise a prediction.
  int64_t estimate_reserved_bytes(const StepConfig& step_config) const;
  double estimate_step_seconds(const StepConfig& step_config) const;
  std::optional<size_t> find_min_recompute_level(int64_t size) const;
  std::optional<StepConfig> find_fastest_estimated_config() const;
  std::optional<StepConfig> find_untried_min_memory_config() const;
  StepEstimate dry_run(const StepConfig& step_config);
  StepEstimate lower_recompute_level(StepEstimate estimate);
  std::optional<StepConfig> find_next_larger_config(const StepConfig& step_config) const;
  std::optional<StepEstimate> find_smaller_pass_estimate();
  bool is_allowed(const StepConfig& step_config) const;
  void dry_run_without_last_block(StepConfig step_config, memory::Component component);
  StepEstimate get_or_make_estimate(const StepConfig& step_config) const;

  PlanEvaluator& evaluator_;
  const Workload& workload_;
  StepConstraints constraints_;
  int64_t limit_bytes_;
  int64_t persistent_bytes_ = 0;                               // weights, gradients, optimizer state
  std::vector<int64_t> micro_batch_sizes_;                     // in ascending order
  models::RecomputeBlockCounts total_block_counts_;            // of the model
  std::vector<models::RecomputeBlockCounts> recompute_order_;  // from no block to all blocks
  std::optional<StepEstimate> min_memory_estimate_;            // set if nothing fits without smaller passes
  std::optional<CostModel> cost_model_;                        // set by run_probes()
};

StepConfigSearch::StepConfigSearch(PlanEvaluator& evaluator, const Workload& workload,
                                   const StepConstraints& constraints, int64_t limit_bytes)
    : evaluator_(evaluator), workload_(workload), constraints_(constraints), limit_bytes_(limit_bytes) {
  micro_batch_sizes_ = constraints.micro_batch_size ? std::vector{*constraints.micro_batch_size}
                                                    : find_divisors(workload.samples_per_rank());
  if (!constraints.micro_batch_size)
    std::erase_if(micro_batch_sizes_, [&](int64_t size) { return size > evaluator.max_micro_batch_size(); });
  if (const auto sizes = evaluator.find_model_sizes()) {
    total_block_counts_ = sizes->blocks;
    persistent_bytes_ = sizes->persistent_bytes;
  }
}

StepConfigSearchResult StepConfigSearch::run() {
  const auto fitting_estimate = find_fitting_estimate();
  const StepEstimate estimate = fitting_estimate ? *fitting_estimate : find_min_memory_estimate();
  return {.fits = fitting_estimate.has_value(),
          .estimate = estimate,
          .alternatives = cost_model_ ? list_alternatives() : std::vector{estimate},
          .cost_model = cost_model_};
}

/// Dry-runs the largest micro-batch without recomputation, if the backend is cheap. Returns nullopt
/// if it does not fit.
std::optional<StepEstimate> StepConfigSearch::dry_run_fastest_config() {
  if (!evaluator_.traits().is_cheap || persistent_bytes_ > limit_bytes_) return std::nullopt;
  StepConfig step_config = make_default_step_config();
  step_config.micro_batch_size = micro_batch_sizes_.back();
  if (!constraints_.recompute.is_auto())
    step_config.recompute = constraints_.recompute.resolve_block_counts(total_block_counts_);
  const StepEstimate estimate = evaluator_.dry_run(step_config);
  return estimate.fits ? std::optional{estimate} : std::nullopt;
}

/// Returns the fastest StepConfig that fits; nullopt if none fits.
std::optional<StepEstimate> StepConfigSearch::find_fitting_estimate() {
  if (auto estimate = dry_run_fastest_config()) return estimate;
  run_probes();
  std::optional<StepEstimate> fastest_estimate;
  for (int64_t num_guesses = 0; num_guesses < kMaxDryRunGuesses; ++num_guesses) {
    auto guessed_config = find_fastest_estimated_config();
    if (!guessed_config) guessed_config = find_untried_min_memory_config();
    if (!guessed_config) break;
    if (const auto larger_config = find_next_larger_config(*guessed_config)) evaluator_.prefetch(*larger_config);
    const StepEstimate estimate = dry_run(*guessed_config);
    if (!estimate.fits) continue;
    if (!fastest_estimate ||
        estimate_step_seconds(*guessed_config) < estimate_step_seconds(fastest_estimate->step_config))
      fastest_estimate = estimate;
    if (find_fastest_estimated_config() == guessed_config) break;
  }
  if (!fastest_estimate) return find_smaller_pass_estimate();
  if (evaluator_.traits().is_cheap) fastest_estimate = lower_recompute_level(*fastest_estimate);
  while (const auto larger_config = find_next_larger_config(fastest_estimate->step_config)) {
    const StepEstimate estimate = dry_run(*larger_config);
    if (!estimate.fits) break;
    fastest_estimate = estimate;
  }
  return fastest_estimate;
}

/// Returns the estimate with the fewest recomputed blocks that fit, with the micro-batch size of
/// `estimate`, which fits.
StepEstimate StepConfigSearch::lower_recompute_level(StepEstimate estimate) {
  const auto level = std::ranges::find(recompute_order_, estimate.step_config.recompute);
  for (auto lower = level; lower != recompute_order_.begin() && lower != recompute_order_.end();) {
    StepConfig step_config = estimate.step_config;
    step_config.recompute = *--lower;
    const StepEstimate lower_estimate = dry_run(step_config);
    if (!lower_estimate.fits) break;
    estimate = lower_estimate;
  }
  return estimate;
}

/// Returns the estimate of the StepConfig that needs the least memory within the constraints.
StepEstimate StepConfigSearch::find_min_memory_estimate() {
  if (min_memory_estimate_) return *min_memory_estimate_;
  // The first of equal configs wins. The default loss chunks and vision passes come first, since
  // smaller ones are slower.
  evaluator_.dry_run(make_smallest_config());
  for (const StepConfig& step_config :
       make_min_memory_configs(constraints_, workload_, total_block_counts_, evaluator_.traits().min_loss_chunk_rows)) {
    evaluator_.dry_run(step_config);
    if (evaluator_.traits().is_detail_expensive) continue;
    const memory::Component peak_component =
        evaluator_.get_dry_run_result(step_config, /*with_timeline=*/false).detail->peak.tag.component;
    // The backward pass of a tower's last block directly follows its forward pass. Keeping the
    // activations of this block may take less memory than keeping its input and recomputing them.
    if (constraints_.recompute.is_auto()) dry_run_without_last_block(step_config, peak_component);
    // If the peak is not in the vision tower, smaller vision passes affect only fragmentation.
    const data::SampleShape& worst_shape = evaluator_.first_worst_case().shapes.front();
    if (peak_component != memory::Component::kVision &&
        worst_shape.num_media() + worst_shape.video_frames > kMaxImagesForVisionPasses)
      break;
  }
  for (const StepEstimate* estimate : evaluator_.list_estimates()) {
    if (!is_allowed(estimate->step_config)) continue;
    if (!min_memory_estimate_ || estimate->peaks.reserved_bytes < min_memory_estimate_->peaks.reserved_bytes)
      min_memory_estimate_ = *estimate;
  }
  return *min_memory_estimate_;
}

void StepConfigSearch::dry_run_without_last_block(StepConfig step_config, memory::Component component) {
  const bool is_vision = component == memory::Component::kVision;
  int64_t& blocks = is_vision ? step_config.recompute.vision : step_config.recompute.language;
  if (blocks == 0) return;
  --blocks;
  evaluator_.dry_run(step_config);
}

/// Returns whether the StepConfig is within the constraints. The evaluator may have estimates of a
/// search with other constraints.
bool StepConfigSearch::is_allowed(const StepConfig& step_config) const {
  const auto is_compatible = [](const std::optional<int64_t>& constraint, int64_t value) {
    return !constraint || *constraint == value;
  };
  return is_compatible(constraints_.micro_batch_size, step_config.micro_batch_size) &&
         is_compatible(constraints_.vision_tiles_per_pass, step_config.vision_tiles_per_pass) &&
         is_compatible(constraints_.loss_chunk_rows, step_config.loss_chunk_rows) &&
         (constraints_.recompute.is_auto() ||
          constraints_.recompute.resolve_block_counts(total_block_counts_) == step_config.recompute);
}

std::vector<StepEstimate> StepConfigSearch::list_alternatives() const {
  std::vector<StepEstimate> estimates;
  int64_t num_too_large_sizes = 0;
  for (const int64_t size : micro_batch_sizes_) {
    if (estimate_reserved_bytes(make_step_config(size, recompute_order_.size() - 1)) > limit_bytes_ &&
        ++num_too_large_sizes > kMaxTooLargeAlternatives)
      break;
    std::set<size_t> recompute_levels{0, recompute_order_.size() - 1};
    if (const auto recompute_level = find_min_recompute_level(size)) recompute_levels.insert(*recompute_level);
    for (const size_t recompute_level : recompute_levels)
      estimates.push_back(get_or_make_estimate(make_step_config(size, recompute_level)));
  }
  return estimates;
}

void StepConfigSearch::run_probes() {
  using ProbeDetail = PlanEvaluator::ProbeDetail;
  const StepConfig base_config = make_default_step_config();
  const bool predicts_time = evaluator_.traits().predicts_time;
  const auto make_probe_config = [&](int64_t size, models::RecomputeBlockCounts blocks) {
    StepConfig step_config = base_config;
    step_config.micro_batch_size = size;
    step_config.recompute = blocks;
    return step_config;
  };
  const bool has_multiple_samples = workload_.samples_per_rank() > 1;
  ProbeResults probe_results;
  if (has_multiple_samples) evaluator_.prefetch_probe(make_probe_config(2, {}), ProbeDetail::kWithCosts);
  probe_results.one_sample_result = evaluator_.probe(base_config, ProbeDetail::kWithCostsAndDetail);
  if (!evaluator_.find_model_sizes()) {
    const DryRunDetail& detail = *probe_results.one_sample_result.detail;
    for (const auto component :
         {memory::Component::kWeights, memory::Component::kGradients, memory::Component::kOptimizer}) {
      persistent_bytes_ += detail.peak.bytes_by_component[static_cast<size_t>(component)];
    }
    total_block_counts_ = {.vision = detail.num_vision_blocks, .language = detail.num_language_blocks};
  }
  probe_results.blocks = total_block_counts_;
  // If one sample exceeds half of the virtual GPU's memory, two samples fit on no GPU and are not
  // dry-run.
  const bool exceeds_all_gpus =
      probe_results.one_sample_result.compute_max_peaks().reserved_bytes > kUnlimitedBytes / 2;
  if (exceeds_all_gpus && !constraints_.micro_batch_size) micro_batch_sizes_.resize(1);
  if (has_multiple_samples && !exceeds_all_gpus)
    probe_results.two_samples = evaluator_.probe(make_probe_config(2, {}), ProbeDetail::kWithCosts);
  const bool has_pixel_rows = evaluator_.first_worst_case().shapes.front().pixel_rows > 0;
  if (total_block_counts_.language > 0)
    evaluator_.prefetch_probe(make_probe_config(1, {0, total_block_counts_.language}), ProbeDetail::kPeaksOnly);
  if (has_pixel_rows && total_block_counts_.vision > 0)
    probe_results.vision =
        evaluator_.probe(make_probe_config(1, {total_block_counts_.vision, 0}), ProbeDetail::kPeaksOnly);
  if (total_block_counts_.language > 0)
    probe_results.language =
        evaluator_.probe(make_probe_config(1, {0, total_block_counts_.language}), ProbeDetail::kPeaksOnly);
  if (predicts_time && probe_results.language && constraints_.recompute.is_auto() &&
      is_selective_checkpointing_worthwhile(*probe_results.one_sample_result.costs)) {
    probe_results.language_selective = evaluator_.probe(
        make_probe_config(1, {0, total_block_counts_.language, /*language_selective=*/total_block_counts_.language}),
        ProbeDetail::kPeaksOnly);
  }
  cost_model_.emplace(probe_results);
  recompute_order_ = cost_model_->make_recompute_order();
  if (!constraints_.recompute.is_auto()) {
    recompute_order_ = {constraints_.recompute.resolve_block_counts(total_block_counts_)};
  }
}

StepConfig StepConfigSearch::make_default_step_config() const {
  return {.micro_batch_size = 1,
          .recompute = {},
          .vision_tiles_per_pass = constraints_.vision_tiles_per_pass.value_or(0),
          .loss_chunk_rows = constraints_.loss_chunk_rows.value_or(StepConfig{}.loss_chunk_rows),
          .expandable_segments = constraints_.expandable_segments};
}

StepConfig StepConfigSearch::make_step_config(int64_t size, size_t recompute_level) const {
  StepConfig step_config = make_default_step_config();
  step_config.micro_batch_size = size;
  step_config.recompute = recompute_order_[recompute_level];
  return step_config;
}

int64_t StepConfigSearch::estimate_reserved_bytes(const StepConfig& step_config) const {
  if (const StepEstimate* estimate = evaluator_.find(step_config)) return estimate->peaks.reserved_bytes;
  return cost_model_->predict_reserved_bytes(step_config.micro_batch_size, step_config.recompute);
}

/// Returns the level (index in recompute_order_) with the fewest recomputed blocks with which the
/// micro-batch size is expected to fit; nullopt if no level is expected to fit.
std::optional<size_t> StepConfigSearch::find_min_recompute_level(int64_t size) const {
  for (size_t recompute_level = 0; recompute_level < recompute_order_.size(); ++recompute_level) {
    if (estimate_reserved_bytes(make_step_config(size, recompute_level)) <= limit_bytes_) return recompute_level;
  }
  return std::nullopt;
}

/// Returns the duration of a step; in units of a block's forward pass if the backend predicts no times.
double StepConfigSearch::estimate_step_seconds(const StepConfig& step_config) const {
  const StepEstimate* const measured_estimate = evaluator_.find(step_config);
  if (measured_estimate != nullptr && evaluator_.traits().predicts_time) return measured_estimate->step_seconds;
  const int64_t num_micro_batches = workload_.samples_per_rank() / step_config.micro_batch_size;
  const auto micro_batches = static_cast<double>(num_micro_batches);
  const double micro_batch_seconds =
      cost_model_->predict_micro_batch_seconds(step_config.micro_batch_size, step_config.recompute);
  return micro_batches * micro_batch_seconds + cost_model_->optimizer_seconds() +
         evaluator_.predict_communication(micro_batch_seconds, num_micro_batches).exposed_seconds;
}

/// Returns the StepConfig with the lowest estimated time among those that are expected to fit.
std::optional<StepConfig> StepConfigSearch::find_fastest_estimated_config() const {
  std::optional<StepConfig> fastest_config;
  double min_seconds = std::numeric_limits<double>::infinity();
  for (const int64_t size : micro_batch_sizes_) {
    const auto recompute_level = find_min_recompute_level(size);
    if (!recompute_level) continue;
    const StepConfig step_config = make_step_config(size, *recompute_level);
    const double seconds = estimate_step_seconds(step_config);
    if (seconds < min_seconds) {
      min_seconds = seconds;
      fastest_config = step_config;
    }
  }
  return fastest_config;
}

/// Returns the smallest micro-batch with full recomputation, unless it has been dry-run or is far
/// from fitting. Its estimate adds up the savings of single blocks and may be more than a tenth too
/// high if temporaries are large.
std::optional<StepConfig> StepConfigSearch::find_untried_min_memory_config() const {
  const StepConfig step_config = make_step_config(micro_batch_sizes_.front(), recompute_order_.size() - 1);
  const bool is_far_above_limit = static_cast<double>(estimate_reserved_bytes(step_config)) >
                                  kMaxFullRecomputeMemoryRatio * static_cast<double>(limit_bytes_);
  if (is_far_above_limit || persistent_bytes_ > limit_bytes_ || evaluator_.find(step_config) != nullptr)
    return std::nullopt;
  return step_config;
}

StepEstimate StepConfigSearch::dry_run(const StepConfig& step_config) {
  const StepEstimate estimate = evaluator_.dry_run(step_config);
  cost_model_->add_measurement(step_config.micro_batch_size, step_config.recompute, estimate.peaks.reserved_bytes);
  return estimate;
}

/// Returns the same config with the next larger micro-batch size, unless that is far from fitting.
std::optional<StepConfig> StepConfigSearch::find_next_larger_config(const StepConfig& step_config) const {
  const auto next =
      std::upper_bound(micro_batch_sizes_.begin(), micro_batch_sizes_.end(), step_config.micro_batch_size);
  if (next == micro_batch_sizes_.end()) return std::nullopt;
  StepConfig larger_config = step_config;
  larger_config.micro_batch_size = *next;
  const bool is_far_above_limit = static_cast<double>(estimate_reserved_bytes(larger_config)) >
                                  kMaxDryRunMemoryRatio * static_cast<double>(limit_bytes_);
  return is_far_above_limit ? std::nullopt : std::optional{larger_config};
}

/// Tries smaller and smaller vision passes and loss chunks, which are slower, and returns the first
/// StepConfig that fits. Returns nullopt if the one with the least memory does not fit.
std::optional<StepEstimate> StepConfigSearch::find_smaller_pass_estimate() {
  const StepEstimate min_memory_estimate = find_min_memory_estimate();
  if (!min_memory_estimate.fits) return std::nullopt;
  const StepConfig full_recompute_config = make_step_config(micro_batch_sizes_.front(), recompute_order_.size() - 1);
  const int64_t tiles = evaluator_.first_worst_case().shapes.front().pixel_rows * micro_batch_sizes_.front();
  for (const StepConfig& step_config : list_smaller_pass_configs(
           full_recompute_config, constraints_, tiles, total_block_counts_, evaluator_.traits().min_loss_chunk_rows)) {
    const StepEstimate estimate = evaluator_.dry_run(step_config);
    if (estimate.fits) return estimate;
  }
  return min_memory_estimate;
}

/// Returns the smallest micro-batch with full recomputation.
StepConfig StepConfigSearch::make_smallest_config() const {
  StepConfig step_config = make_step_config(micro_batch_sizes_.front(), recompute_order_.size() - 1);
  if (constraints_.recompute.is_auto()) step_config.recompute = total_block_counts_;
  return step_config;
}

StepEstimate StepConfigSearch::get_or_make_estimate(const StepConfig& step_config) const {
  if (const StepEstimate* estimate = evaluator_.find(step_config)) return *estimate;
  // An interpolated config cannot need less than the measured minimum.
  const int64_t bytes = std::max(estimate_reserved_bytes(step_config),
                                 min_memory_estimate_ ? min_memory_estimate_->peaks.reserved_bytes : 0);
  StepEstimate estimate{.step_config = step_config, .peaks = {0, bytes}};
  if (evaluator_.traits().predicts_time) {
    estimate.step_seconds = estimate_step_seconds(step_config);
    estimate.tokens_per_second =
        evaluator_.compute_tokens_per_step(evaluator_.first_worst_case()) / estimate.step_seconds;
  }
  estimate.fits = estimate.peaks.reserved_bytes <= limit_bytes_;
  return estimate;
}

}  // namespace

StepConfigSearchResult search_step_config(PlanEvaluator& evaluator, const Workload& workload,
                                          const StepConstraints& constraints, int64_t limit_bytes) {
  return StepConfigSearch(evaluator, workload, constraints, limit_bytes).run();
}

}  // namespace vlmtrain::planner
