#include "planner/search/split_plan_learner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/search/nonnegative_least_squares.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain::planner {

namespace {

/// Fractions of the activation memory between which micro-batches count as near the limit. Not
/// tuned.
constexpr double kMinNearLimitFraction = 0.4;
constexpr double kMaxNearLimitFraction = 1.15;
/// Weight of the other micro-batches in the fit. They help to separate the terms. Not tuned.
constexpr double kFarFromLimitWeight = 0.02;
/// Rounds of fitting, and fullest micro-batches that each round dry-runs. Not tuned: fewer make the
/// fit worse near the limit, more make planning slower.
constexpr int64_t kNumFitRounds = 3;
constexpr int64_t kNumFullestMicroBatches = 6;
/// Copies of a sample are dry-run up to twice this fraction of the activation memory. Not tuned.
constexpr double kMaxFractionOfTwoSamples = 0.6;
/// Maximum numbers of sampled steps, of micro-batches, and of micro-batches per step in the final
/// dry run. They bound its time. Not tuned.
constexpr int64_t kMaxDryRunSteps = 12;
constexpr int64_t kMaxDryRunMicroBatches = 40;
constexpr int64_t kMaxMicroBatchesPerSampledStep = 8;
constexpr int64_t kMaxMicroBatchesPerWorstStep = 4;
/// Maximum number of reductions of the limit. Each one removes the excess and a margin:
/// kLargeBufferBytes, but at most 1 / kLimitMarginDivisor of the limit. Not tuned.
constexpr int64_t kMaxLimitReductions = 4;
constexpr int64_t kLimitMarginDivisor = 200;
/// Allocation unit of large segments in PyTorch's caching allocator (kLargeBuffer, 20 MiB).
constexpr int64_t kLargeBufferBytes = int64_t{20} << 20;

/// Returns the row of the least squares problem: 1 for base_bytes, then the terms.
std::vector<double> make_least_squares_row(const MemoryCostTable& table, const MicroBatchSizes& sizes) {
  std::vector<double> row{1};
  for (const int64_t term : table.compute_term_values(sizes)) row.push_back(static_cast<double>(term));
  return row;
}

SampleShapeList get_micro_batch_shapes(const SampleShapeList& step, const engine::MicroBatchSplit& split,
                                       int64_t micro_batch_index) {
  SampleShapeList samples;
  for (const int64_t index : split.get_sample_indices(micro_batch_index))
    samples.push_back(step[static_cast<size_t>(index)]);
  return samples;
}

/// One call of learn_split_plan().
class SplitPlanLearner {
 public:
  SplitPlanLearner(MicroBatchDryRun& dry_run, const SplitPlanRequest& split_request)
      : dry_run_(dry_run), split_request_(split_request), plan_{.table = split_request.initial_table} {
    for (const auto* steps : {&split_request.worst_steps, &split_request.sampled_steps}) {
      for (const SampleShapeList& step : *steps) {
        for (const auto& shape : step) all_shapes_.push_back(&shape);
      }
    }
  }

  SplitPlan learn() {
    measure_micro_batches(list_single_sample_micro_batches());
    measure_micro_batches(make_small_micro_batches());
    for (int64_t round = 0; round < kNumFitRounds; ++round) {
      fit_table();
      if (!measure_micro_batches(find_fullest_micro_batches())) break;
    }
    fit_table();
    reduce_memory_limit();
    return plan_;
  }

 private:
  template <class Size>
  const data::SampleShape& find_largest_sample(const Size& size) const {
    return **std::ranges::max_element(all_shapes_, {}, [&](const data::SampleShape* shape) { return size(*shape); });
  }

  /// Returns the largest and the smallest sample by each size, and the quartiles by tokens.
  std::vector<SampleShapeList> list_single_sample_micro_batches() const {
    using Shape = data::SampleShape;
    std::vector<SampleShapeList> micro_batches;
    const auto add_extreme_samples = [&](const auto& size) {
      micro_batches.push_back({find_largest_sample(size)});
      micro_batches.push_back({find_largest_sample([&](const Shape& shape) { return -size(shape); })});
    };
    add_extreme_samples([](const Shape& shape) { return shape.tokens; });
    add_extreme_samples([](const Shape& shape) { return shape.pixel_rows; });
    add_extreme_samples([](const Shape& shape) { return shape.label_tokens; });
    if (find_largest_sample([](const Shape& shape) { return shape.masks; }).masks > 0) {
      add_extreme_samples([](const Shape& shape) { return shape.masks; });
      add_extreme_samples([](const Shape& shape) { return shape.num_images_with_masks; });
    }
    add_extreme_samples([](const Shape& shape) { return shape.tokens - shape.image_tokens; });
    auto shapes_by_tokens = all_shapes_;
    std::ranges::stable_sort(shapes_by_tokens, {}, [](const Shape* shape) { return shape->tokens; });
    for (const size_t quarter : {1, 2, 3})
      micro_batches.push_back({*shapes_by_tokens[quarter * (shapes_by_tokens.size() - 1) / 4]});
    return micro_batches;
  }

  /// Returns two and four copies of each single sample, if they are expected to fit.
  std::vector<SampleShapeList> make_small_micro_batches() const {
    std::vector<SampleShapeList> micro_batches;
    for (const auto& single : list_single_sample_micro_batches()) {
      const auto single_measurement =
          std::ranges::find(measured_micro_batches_, compute_micro_batch_sizes(single), &MeasuredMicroBatch::sizes);
      const int64_t activation_bytes = single_measurement->bytes - find_min_measured_bytes();
      const int64_t headroom = split_request_.initial_table.limit_bytes - find_min_measured_bytes();
      const auto fits = [&](int64_t count) {
        return static_cast<double>(activation_bytes) * static_cast<double>(count) <=
               2 * kMaxFractionOfTwoSamples * static_cast<double>(headroom);
      };
      for (const int64_t count : {2, 4}) {
        if (fits(count) && is_sample_count_allowed(count)) {
          micro_batches.emplace_back(static_cast<size_t>(count), single.front());
        }
      }
    }
    return micro_batches;
  }

  bool is_sample_count_allowed(int64_t samples) const {
    return split_request_.initial_table.max_samples == 0 || samples <= split_request_.initial_table.max_samples;
  }

  int64_t find_min_measured_bytes() const {
    return std::ranges::min_element(measured_micro_batches_, {}, &MeasuredMicroBatch::bytes)->bytes;
  }

  /// Returns the fullest micro-batches of the sampled steps, and the largest ones by each size.
  std::vector<SampleShapeList> find_fullest_micro_batches() const {
    std::vector<SampleShapeList> micro_batches;
    for (const SampleShapeList& step : split_request_.sampled_steps) {
      const engine::MicroBatchSplit split = split_by_memory(step, plan_.table);
      for (int64_t i = 0; i < split.num_micro_batches(); ++i)
        micro_batches.push_back(get_micro_batch_shapes(step, split, i));
    }
    std::vector<SampleShapeList> fullest_micro_batches;
    const auto add_fullest_micro_batches = [&](int64_t count, const auto& size) {
      std::ranges::stable_sort(micro_batches, std::ranges::greater{}, [&](const SampleShapeList& micro_batch) {
        return size(compute_micro_batch_sizes(micro_batch));
      });
      const auto end = micro_batches.begin() + std::min(count, std::ssize(micro_batches));
      fullest_micro_batches.insert(fullest_micro_batches.end(), micro_batches.begin(), end);
    };
    add_fullest_micro_batches(2, [](const MicroBatchSizes& sizes) { return sizes.samples; });
    add_fullest_micro_batches(2, [](const MicroBatchSizes& sizes) { return sizes.tokens; });
    add_fullest_micro_batches(2, [](const MicroBatchSizes& sizes) { return sizes.pixel_rows; });
    add_fullest_micro_batches(2, [](const MicroBatchSizes& sizes) { return sizes.label_tokens; });
    add_fullest_micro_batches(2, [](const MicroBatchSizes& sizes) { return sizes.masks; });
    add_fullest_micro_batches(kNumFullestMicroBatches,
                              [this](const MicroBatchSizes& sizes) { return plan_.table.bytes(sizes); });
    return fullest_micro_batches;
  }

  /// Dry-runs the micro-batches that have not been dry-run yet. Returns whether there were any.
  bool measure_micro_batches(std::vector<SampleShapeList> micro_batches) {
    std::vector<SampleShapeList> unmeasured_micro_batches;
    for (auto& micro_batch : micro_batches) {
      const MicroBatchSizes sizes = compute_micro_batch_sizes(micro_batch);
      const auto has_same_sizes = [&](const SampleShapeList& candidate) {
        return compute_micro_batch_sizes(candidate) == sizes;
      };
      if (std::ranges::find(measured_micro_batches_, sizes, &MeasuredMicroBatch::sizes) !=
          measured_micro_batches_.end())
        continue;
      if (std::ranges::any_of(unmeasured_micro_batches, has_same_sizes)) continue;
      unmeasured_micro_batches.push_back(std::move(micro_batch));
    }
    if (unmeasured_micro_batches.empty()) return false;
    const auto bytes = dry_run_.measure_reserved_peak_bytes(unmeasured_micro_batches);
    for (size_t i = 0; i < unmeasured_micro_batches.size(); ++i)
      measured_micro_batches_.push_back({compute_micro_batch_sizes(unmeasured_micro_batches[i]), bytes[i]});
    return true;
  }

  void fit_table() { plan_.table = fit_cost_table(split_request_.initial_table, measured_micro_batches_); }

  /// Lowers the table's limit until steps stay within the plan's limit, unless this does not help.
  void reduce_memory_limit() {
    plan_.num_measured_micro_batches = std::ssize(measured_micro_batches_);
    const int64_t limit = split_request_.initial_table.limit_bytes;
    int64_t peak_bytes = run_steps();
    for (int64_t reductions = 0; peak_bytes > limit && reductions < kMaxLimitReductions; ++reductions) {
      const SplitPlan previous_plan = plan_;
      plan_.table.limit_bytes -= peak_bytes - limit + std::min(kLargeBufferBytes, limit / kLimitMarginDivisor);
      const int64_t next_peak_bytes = run_steps();
      if (next_peak_bytes >= peak_bytes) {
        plan_ = previous_plan;
        return;
      }
      peak_bytes = next_peak_bytes;
    }
  }

  /// Dry-runs some steps, sets the statistics of the plan, and returns the reserved peak.
  int64_t run_steps() {
    record_micro_batch_counts();
    std::vector<PartialStep> partial_steps;
    std::vector<size_t> sampled_step_indices;
    int64_t num_micro_batches = 0;
    for (size_t i = 0; i < split_request_.sampled_steps.size() && std::ssize(sampled_step_indices) < kMaxDryRunSteps &&
                       num_micro_batches < kMaxDryRunMicroBatches;
         ++i) {
      sampled_step_indices.push_back(partial_steps.size());
      partial_steps.push_back(make_partial_step(split_request_.sampled_steps[i], kMaxMicroBatchesPerSampledStep));
      num_micro_batches += partial_steps.back().split.num_micro_batches();
      if (i >= split_request_.worst_steps.size()) continue;
      partial_steps.push_back(make_partial_step(split_request_.worst_steps[i], kMaxMicroBatchesPerWorstStep));
      num_micro_batches += partial_steps.back().split.num_micro_batches();
    }
    std::vector<SampleShapeList> steps;
    std::vector<engine::MicroBatchSplit> splits;
    steps.reserve(partial_steps.size());
    splits.reserve(partial_steps.size());
    for (const PartialStep& partial_step : partial_steps) {
      steps.push_back(partial_step.samples);
      splits.push_back(partial_step.split);
    }
    const auto results = dry_run_.run_steps(steps, splits);
    plan_.peaks = results.peaks;
    plan_.num_dry_run_steps = std::ssize(sampled_step_indices);
    if (results.seconds.empty()) return results.peaks.reserved_bytes;
    double seconds = 0;
    double samples = 0;
    for (const size_t index : sampled_step_indices) {
      const double micro_batch_seconds = results.seconds[index] - results.step_overhead_seconds;
      seconds += results.step_overhead_seconds + micro_batch_seconds / partial_steps[index].share;
      samples += static_cast<double>(partial_steps[index].samples_per_step);
    }
    plan_.step_seconds = seconds / static_cast<double>(sampled_step_indices.size());
    plan_.samples_per_second = samples / seconds;
    return results.peaks.reserved_bytes;
  }

  /// Splits all sampled steps and records their numbers of micro-batches.
  void record_micro_batch_counts() {
    plan_.num_sampled_steps = std::ssize(split_request_.sampled_steps);
    plan_.max_micro_batches_per_step = plan_.min_micro_batches_per_step = 0;
    int64_t num_micro_batches = 0;
    for (const SampleShapeList& step : split_request_.sampled_steps) {
      const int64_t num_step_micro_batches = split_by_memory(step, plan_.table).num_micro_batches();
      num_micro_batches += num_step_micro_batches;
      plan_.max_micro_batches_per_step = std::max(plan_.max_micro_batches_per_step, num_step_micro_batches);
      plan_.min_micro_batches_per_step = plan_.min_micro_batches_per_step == 0
                                             ? num_step_micro_batches
                                             : std::min(plan_.min_micro_batches_per_step, num_step_micro_batches);
    }
    plan_.mean_micro_batches_per_step =
        static_cast<double>(num_micro_batches) / static_cast<double>(plan_.num_sampled_steps);
  }

  /// Some micro-batches of a step, which represent it in a dry run.
  struct PartialStep {
    SampleShapeList samples;
    engine::MicroBatchSplit split;
    double share = 1;              ///< fraction of the step's activation bytes, used to extrapolate its duration
    int64_t samples_per_step = 0;  ///< number of samples of the whole step
  };

  /// Returns the fullest micro-batch of a step, and others at equal distances in decreasing bytes.
  PartialStep make_partial_step(const SampleShapeList& step, int64_t max_num_micro_batches) const {
    const engine::MicroBatchSplit full_split = split_by_memory(step, plan_.table);
    const int64_t num_micro_batches = std::min(max_num_micro_batches, full_split.num_micro_batches());
    PartialStep partial_step;
    std::vector<int64_t> sizes;
    sizes.reserve(static_cast<size_t>(num_micro_batches));
    double selected_bytes = 0;
    double total_bytes = 0;
    for (int64_t i = 0; i < full_split.num_micro_batches(); ++i) {
      const SampleShapeList micro_batch = get_micro_batch_shapes(step, full_split, i);
      const auto bytes =
          static_cast<double>(plan_.table.bytes(compute_micro_batch_sizes(micro_batch)) - plan_.table.base_bytes);
      total_bytes += bytes;
      const int64_t next = std::ssize(sizes) * full_split.num_micro_batches() / num_micro_batches;
      if (std::ssize(sizes) == num_micro_batches || i < next) continue;
      selected_bytes += bytes;
      partial_step.samples.insert(partial_step.samples.end(), micro_batch.begin(), micro_batch.end());
      sizes.push_back(std::ssize(micro_batch));
    }
    partial_step.split = engine::split_in_order(std::move(sizes));
    partial_step.share = total_bytes > 0 ? selected_bytes / total_bytes : 1;
    partial_step.samples_per_step = std::ssize(step);
    return partial_step;
  }

  MicroBatchDryRun& dry_run_;
  const SplitPlanRequest& split_request_;
  SplitPlan plan_;
  std::vector<const data::SampleShape*> all_shapes_;
  std::vector<MeasuredMicroBatch> measured_micro_batches_;
};

}  // namespace

MemoryCostTable fit_cost_table(MemoryCostTable table, const std::vector<MeasuredMicroBatch>& micro_batches) {
  VLMTRAIN_CHECK(!micro_batches.empty(), "a cost table needs at least one dry run");
  const auto min_bytes =
      static_cast<double>(std::ranges::min_element(micro_batches, {}, &MeasuredMicroBatch::bytes)->bytes);
  const double headroom = std::max(1.0, static_cast<double>(table.limit_bytes) - min_bytes);
  const auto is_near_limit = [&](const MeasuredMicroBatch& micro_batch) {
    const double share = (static_cast<double>(micro_batch.bytes) - min_bytes) / headroom;
    return share >= kMinNearLimitFraction && share <= kMaxNearLimitFraction;
  };
  const bool any_near_limit = std::ranges::any_of(micro_batches, is_near_limit);
  std::vector<std::vector<double>> rows;
  std::vector<double> values;
  std::vector<double> weights;
  for (const MeasuredMicroBatch& micro_batch : micro_batches) {
    rows.push_back(make_least_squares_row(table, micro_batch.sizes));
    values.push_back(static_cast<double>(micro_batch.bytes));
    weights.push_back(!any_near_limit || is_near_limit(micro_batch) ? 1 : kFarFromLimitWeight);
  }
  const auto coefficients = solve_nonnegative_least_squares(rows, values, weights);
  constexpr double kCoefficientScale = 1024;  // of MemoryCostTable::bytes_per_1024_units
  table.base_bytes = std::llround(std::floor(coefficients.front()));
  for (size_t term = 0; term < MemoryCostTable::kNumTerms; ++term) {
    table.bytes_per_1024_units[term] = std::llround(std::ceil(coefficients[term + 1] * kCoefficientScale));
  }
  int64_t max_error_bytes = 0;
  for (const MeasuredMicroBatch& micro_batch : micro_batches) {
    if (!any_near_limit || is_near_limit(micro_batch))
      max_error_bytes = std::max(max_error_bytes, micro_batch.bytes - table.bytes(micro_batch.sizes));
  }
  table.base_bytes += max_error_bytes;
  return table;
}

SplitPlan learn_split_plan(MicroBatchDryRun& dry_run, const SplitPlanRequest& split_request) {
  VLMTRAIN_CHECK(!split_request.sampled_steps.empty(), "no steps to split");
  return SplitPlanLearner(dry_run, split_request).learn();
}

nlohmann::ordered_json SplitPlan::to_json() const {
  const auto to_json_or_null = [](double number) { return number > 0 ? nlohmann::ordered_json(number) : nullptr; };
  nlohmann::ordered_json json{{"sampled_steps", num_sampled_steps},
                              {"micro_batches_per_step", mean_micro_batches_per_step},
                              {"min_micro_batches", min_micro_batches_per_step},
                              {"max_micro_batches", max_micro_batches_per_step},
                              {"step_seconds", to_json_or_null(step_seconds)},
                              {"samples_per_second", to_json_or_null(samples_per_second)},
                              {"allocated_peak_bytes", peaks.allocated_bytes},
                              {"reserved_peak_bytes", peaks.reserved_bytes},
                              {"dry_run_steps", num_dry_run_steps},
                              {"measured_micro_batches", num_measured_micro_batches},
                              {"limit_bytes", table.limit_bytes}};
  io::add_field_aliases(json, {{"sampled_steps", "drawn_steps"},
                               {"micro_batches_per_step", "passes_per_step"},
                               {"min_micro_batches", "fewest_passes"},
                               {"max_micro_batches", "most_passes"},
                               {"dry_run_steps", "rehearsed_steps"},
                               {"measured_micro_batches", "rehearsed_sets"}});
  return json;
}

}  // namespace vlmtrain::planner
