// Measures how well steps are split into micro-batches by memory, for mixtures of samples on a
// virtual GPU of exactly the planned size:
//
// - micro-batches per step over `steps` random steps of 16 samples, compared with the optimum under
//   the same cost table (branch and bound), and how many steps would run with one micro-batch less
//   than the table allows;
// - predicted samples per second, compared with an equal split (`micro_batch_size` of the plan for
//   the worst step) and with micro-batches of four, which are split further if they do not fit
//   (memory.allow_splits);
// - the steps in sequence on the GPU: whether memory ran out, and whether the look-ahead predicted
//   each step's peak.
//
//   cut [steps] [seed] > table.md

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "app/process/model_folder.h"
#include "random_jobs.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/synthetic_sample.h"
#include "vlmtrain/planner/backend.h"
#include "vlmtrain/planner/job.h"
#include "vlmtrain/planner/look_ahead.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/split_plan.h"

namespace vlmtrain {

namespace {

using planner::MemoryCostTable;
using planner::MicroBatchSizes;
using Samples = std::vector<data::SampleShape>;

constexpr int64_t kGlobalBatch = 16;
constexpr int64_t kDataSetSize = 2000;
constexpr int64_t kFixedMicroBatch = 4;
/// Number of steps whose times are predicted, which takes long.
constexpr size_t kTimedSteps = 50;

struct Mixture {
  std::string name;
  std::string model;
  std::string target;
  int64_t lora_rank = 0;
  /// Images per sample.
  int64_t (*images)(Random& random) = nullptr;
};

int64_t sample_one_or_thirty(Random& random) {
  return random.with_chance(0.1) ? 30 : 1;
}

int64_t sample_one_to_four(Random& random) {
  return random.between(1, 4);
}

constexpr const char* kOneOrThirtyName = "10 % of 30 images, else 1";
constexpr const char* kOneToFourName = "1 to 4 images";

const Mixture kMixtures[] = {{kOneOrThirtyName, "llava-1.5-7b", "h100", 16, sample_one_or_thirty},
                             {kOneToFourName, "llava-1.5-7b", "a100-40", 16, sample_one_to_four},
                             {kOneOrThirtyName, "nanovlm-222m", "rtx4090", 0, sample_one_or_thirty},
                             {kOneToFourName, "smolvlm-256m", "rtx4090", 0, sample_one_to_four},
                             {kOneToFourName, "qwen2-vl-2b", "h100", 16, sample_one_to_four}};

data::SampleIndex make_data_set(const Mixture& mixture, const std::filesystem::path& folder, Random& random) {
  data::SampleIndex samples;
  for (int64_t i = 0; i < kDataSetSize; ++i) {
    models::SyntheticSample sample{.images = mixture.images(random),
                                   .image_width = random.pick(std::to_array<int64_t>({512, 768, 1024})),
                                   .image_height = random.pick(std::to_array<int64_t>({512, 768})),
                                   .text_tokens = random.between(64, 768)};
    sample.label_tokens = random.between(16, sample.text_tokens / 2);
    samples.ids.push_back(fmt::format("s{}", i));
    samples.shapes.push_back(models::compute_sample_shape(folder, sample));
  }
  return samples;
}

/// Returns the minimum number of micro-batches that hold all samples, by exhaustive search.
class OptimalSplit {
 public:
  OptimalSplit(const Samples& samples, const MemoryCostTable& table) : table_(table) {
    for (const auto& shape : samples) items_.push_back(planner::compute_micro_batch_sizes(shape));
    std::ranges::sort(items_, std::ranges::greater{}, [&](const MicroBatchSizes& sizes) { return table.bytes(sizes); });
  }

  /// REQUIRES: `most` micro-batches suffice.
  int64_t count_passes(int64_t upper_bound) {
    for (int64_t num_bins = upper_bound - 1; num_bins > 0; --num_bins) {
      bins_.assign(static_cast<size_t>(num_bins), {});
      if (!assign(0)) return num_bins + 1;
    }
    return 1;
  }

 private:
  bool assign(size_t next) {
    if (next == items_.size()) return true;
    if (!can_hold_rest(next)) return false;
    for (size_t bin = 0; bin < bins_.size(); ++bin) {
      if (std::find(bins_.begin(), bins_.begin() + static_cast<std::ptrdiff_t>(bin), bins_[bin]) !=
          bins_.begin() + static_cast<std::ptrdiff_t>(bin)) {
        continue;
      }
      const MicroBatchSizes before = bins_[bin];
      const MicroBatchSizes combined = before.merge(items_[next]);
      if (before.samples > 0 && !table_.fits(combined)) continue;
      bins_[bin] = combined;
      if (assign(next + 1)) return true;
      bins_[bin] = before;
    }
    return false;
  }

  /// Returns whether the remaining additive costs fit into the remaining memory.
  bool can_hold_rest(size_t next) const {
    MemoryCostTable additive = table_;
    additive.base_bytes = 0;
    for (const auto term :
         {MemoryCostTable::kPaddedTokens, MemoryCostTable::kLossRows, MemoryCostTable::kVisionPassRows}) {
      additive.bytes_per_1024_units[term] = 0;
    }
    int64_t free_bytes = 0;
    for (const auto& bin : bins_) {
      free_bytes += std::max<int64_t>(0, table_.limit_bytes - table_.base_bytes - additive.bytes(bin) + 1);
    }
    MicroBatchSizes rest;
    for (size_t i = next; i < items_.size(); ++i) {
      // A sample that fits only alone takes an empty micro-batch.
      if (table_.fits(items_[i])) rest = rest.merge(items_[i]);
    }
    return rest.samples == 0 || additive.bytes(rest) <= free_bytes;
  }

  const MemoryCostTable& table_;
  std::vector<MicroBatchSizes> items_;
  std::vector<MicroBatchSizes> bins_;
};

double measure_samples_per_second(planner::DryRunProcess& process, const planner::StepConfig& step_config,
                                  const std::vector<Samples>& steps,
                                  const std::vector<engine::MicroBatchSplit>& splits) {
  planner::DryRunRequest request{.step_config = step_config, .steps = {}, .with_step_seconds = true};
  for (size_t i = 0; i < std::min(kTimedSteps, steps.size()); ++i) {
    request.steps.push_back(planner::group_samples(steps[i]));
    request.micro_batch_splits.push_back(splits[i]);
  }
  const auto outcome = process.dry_run(request);
  VLMTRAIN_CHECK(outcome.step_seconds.size() == request.steps.size(), "a step failed");
  const double seconds = std::accumulate(outcome.step_seconds.begin(), outcome.step_seconds.end(), 0.0);
  return static_cast<double>(kGlobalBatch * std::ssize(request.steps)) / seconds;
}

struct SplitForecast {
  std::vector<engine::MicroBatchSplit> splits;
  std::vector<int64_t> reserved_bytes;
  int64_t num_split = 0;
  int64_t num_released = 0;
  int64_t steps_before_release = 0;  ///< steps before the cache was first emptied
};

SplitForecast forecast_splits(const planner::Plan& plan, const planner::StepConfig& step_config,
                              const std::vector<Samples>& steps, const std::vector<engine::MicroBatchSplit>& splits) {
  planner::LookAheadProcess look_ahead(plan.job, step_config, planner::make_virtual_gpu(plan.gpu()));
  SplitForecast forecast;
  for (size_t i = 0; i < steps.size(); ++i) {
    engine::StepLayout layout = planner::make_step_layout(step_config, steps[i]);
    layout.split = splits[i];
    look_ahead.submit({.step = static_cast<int64_t>(i),
                       .samples = planner::group_samples(steps[i]),
                       .layout = layout,
                       .limit_bytes = plan.limit.limit_bytes});
    const auto result = look_ahead.wait_for_forecast(static_cast<int64_t>(i), std::chrono::seconds(600));
    VLMTRAIN_CHECK(result && result->fits, "step {} is not predicted to fit", i);
    forecast.num_split += result->layout != layout;
    forecast.num_released += result->empty_cache_at_start;
    forecast.steps_before_release += forecast.num_released == 0;
    forecast.splits.push_back(result->layout.split);
    forecast.reserved_bytes.push_back(result->peaks.reserved_bytes);
  }
  return forecast;
}

int64_t count_passes(const std::vector<engine::MicroBatchSplit>& splits) {
  int64_t num_passes = 0;
  for (const auto& split : splits) num_passes += split.num_micro_batches();
  return num_passes;
}

/// Counts the steps that fit on the GPU with one micro-batch less than the table allows, split by a
/// table with more memory.
int64_t count_improvable_steps(planner::DryRunProcess& process, const planner::Plan& plan,
                               const std::vector<Samples>& steps, const std::vector<engine::MicroBatchSplit>& splits) {
  int64_t num_improvable = 0;
  for (size_t i = 0; i < std::min(kTimedSteps, steps.size()); ++i) {
    MemoryCostTable wider = plan.split->table;
    for (int percent = 1; percent <= 12; ++percent) {
      wider.limit_bytes += plan.split->table.limit_bytes / 100;
      engine::MicroBatchSplit split = planner::split_by_memory(steps[i], wider);
      if (split.num_micro_batches() >= splits[i].num_micro_batches()) continue;
      const auto samples = planner::group_samples(steps[i]);
      const auto outcome = process.dry_run({.step_config = plan.best_estimate.step_config,
                                            .steps = {samples, samples},
                                            .micro_batch_splits = {split, split}});
      num_improvable += outcome.compute_max_peaks().reserved_bytes <= plan.limit.limit_bytes;
      break;
    }
  }
  return num_improvable;
}

void run_mixture(const Mixture& mixture, int64_t num_steps, uint64_t seed) {
  const app::TemporaryFolder folder;
  models::write_preset_config(mixture.model, folder.path());
  Random random(seed, 0);
  const auto samples = make_data_set(mixture, folder.path(), random);
  planner::PlanRequest request;
  request.model = mixture.model;
  request.job.model = folder.path();
  if (mixture.lora_rank > 0) request.job.lora = nn::LoraSettings{.rank = mixture.lora_rank};
  request.target = planner::find_target_gpu(mixture.target);
  request.workload = {.worst_batches = planner::find_worst_batches(samples, kGlobalBatch),
                      .global_batch_size = kGlobalBatch};
  const auto sample_step = [&] {
    Samples step;
    for (int64_t sample = 0; sample < kGlobalBatch; ++sample)
      step.push_back(samples.shapes.at(random.between(0, kDataSetSize - 1)));
    return step;
  };
  const planner::Plan equal = planner::make_plan(request);
  for (int64_t i = 0; i < planner::compute_num_sampled_steps(kGlobalBatch); ++i)
    request.workload.sampled_steps.push_back({sample_step()});
  const planner::Plan plan = planner::make_plan(request);
  fmt::print(stderr, "{} on {}: {:.1f} s, split by memory {:.1f} s; {} of {} blocks\n", mixture.model, mixture.target,
             equal.planning_stats.seconds, plan.planning_stats.seconds,
             plan.best_estimate.step_config.recompute.vision + plan.best_estimate.step_config.recompute.language,
             plan.detail.num_vision_blocks + plan.detail.num_language_blocks);
  if (!plan.fits || !plan.split) {
    fmt::print("| {} | {} | {} | not split by memory |\n", mixture.name, mixture.model, mixture.target);
    return;
  }
  fmt::print(stderr, "{}\n{}\n", plan.split->to_json().dump(), plan.split->table.to_json().dump());

  std::vector<Samples> steps;
  std::vector<engine::MicroBatchSplit> splits;
  std::vector<engine::MicroBatchSplit> equal_cuts;
  std::vector<engine::MicroBatchSplit> fixed_cuts;
  int64_t optimum = 0;
  for (int64_t i = 0; i < num_steps; ++i) {
    Samples step = sample_step();
    splits.push_back(planner::split_by_memory(step, plan.split->table));
    equal_cuts.push_back(engine::split_evenly(kGlobalBatch, equal.best_estimate.step_config.micro_batch_size));
    fixed_cuts.push_back(engine::split_evenly(kGlobalBatch, kFixedMicroBatch));
    optimum += OptimalSplit(step, plan.split->table).count_passes(splits.back().num_micro_batches());
    steps.push_back(std::move(step));
  }

  planner::DryRunProcess unlimited(plan.job, planner::make_virtual_gpu(plan.gpu()));
  const double memory_split_speed =
      measure_samples_per_second(unlimited, plan.best_estimate.step_config, steps, splits);
  const double equal_split_speed =
      measure_samples_per_second(unlimited, equal.best_estimate.step_config, steps, equal_cuts);
  const int64_t num_improvable = count_improvable_steps(unlimited, plan, steps, splits);
  const std::vector<Samples> first(steps.begin(),
                                   steps.begin() + static_cast<std::ptrdiff_t>(std::min(kTimedSteps, steps.size())));
  planner::PlanRequest single = request;
  single.constraints.micro_batch_size = 1;
  const planner::Plan split = planner::make_plan(single);
  const SplitForecast split_forecast = forecast_splits(split, split.best_estimate.step_config, first, fixed_cuts);
  const double fixed_split_speed =
      measure_samples_per_second(unlimited, split.best_estimate.step_config, first, split_forecast.splits);

  const SplitForecast forecast = forecast_splits(plan, plan.best_estimate.step_config, steps, splits);
  planner::DryRunProcess process(plan.job, {.gpu = std::string(plan.gpu().gpu->name),
                                            .memory_bytes = plan.limit.allowed_bytes,
                                            .initial_used_bytes = plan.limit.context_bytes});
  planner::DryRunRequest dry_run_request{
      .step_config = plan.best_estimate.step_config, .steps = {}, .micro_batch_splits = forecast.splits};
  for (const auto& step : steps) dry_run_request.steps.push_back(planner::group_samples(step));
  const auto outcome = process.dry_run(dry_run_request);
  // After the look-ahead made a run empty its cache, these steps differ from the run's.
  int64_t num_exact = 0;
  for (size_t i = 0; i < static_cast<size_t>(forecast.steps_before_release); ++i) {
    num_exact += outcome.steps[i].reserved_bytes == forecast.reserved_bytes[i];
  }
  const auto per_step = [&](int64_t num_passes) {
    return static_cast<double>(num_passes) / static_cast<double>(num_steps);
  };
  fmt::print(
      "| {} | {}{} | {} | {} × {} | {:.2f} | {:.3f} | {} of {} | {:.2f} | {:.2f} ({:.2f}×) | {:.2f} ({:.2f}×) | {} | "
      "{} "
      "+ {} | {} of {} | {:.1f} % |\n",
      mixture.name, mixture.model, mixture.lora_rank > 0 ? ", LoRA" : ", full", mixture.target,
      equal.best_estimate.step_config.micro_batch_size, equal.gradient_accumulation_steps(),
      per_step(count_passes(splits)), static_cast<double>(count_passes(splits)) / static_cast<double>(optimum),
      num_improvable, first.size(), memory_split_speed, equal_split_speed, memory_split_speed / equal_split_speed,
      fixed_split_speed, memory_split_speed / fixed_split_speed, outcome.ran_out_of_memory ? "yes" : "no",
      forecast.num_split, forecast.num_released, num_exact, forecast.steps_before_release,
      100 * static_cast<double>(outcome.compute_max_peaks().reserved_bytes) /
          static_cast<double>(plan.limit.limit_bytes));
  std::fflush(stdout);
}

}  // namespace

}  // namespace vlmtrain

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "dry-run") {  // the dry-run process, as in vlmtrain
    vlmtrain::planner::serve_dry_runs();
    return 0;
  }
  const int64_t steps = argc > 1 ? std::atoll(argv[1]) : 500;
  const auto seed = static_cast<uint64_t>(argc > 2 ? std::atoll(argv[2]) : 1);
  const int64_t only = argc > 3 ? std::atoll(argv[3]) : -1;
  fmt::print(
      "| samples | model | GPU | equal split | micro-batches a step | of the optimum | possible with fewer | samples/s "
      "| "
      "equal split | split fours | out of memory | split + cache emptied by the look-ahead | exact, before that | "
      "peak reserved, of the limit |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (int64_t i = 0; i < std::ssize(vlmtrain::kMixtures); ++i) {
    if (only < 0 || i == only) vlmtrain::run_mixture(vlmtrain::kMixtures[i], steps, seed);
  }
  return 0;
}
