#include "train/planning/host_run_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "train/data_check/data_check.h"
#include "train/data_check/run_records.h"
#include "train/run/rank_group.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/memory/large_blocks.h"
#include "vlmtrain/train/past_runs.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

namespace {

using planner::MemoryLimit;
using planner::Plan;
using planner::PlanRequest;

std::string format_gigabytes(int64_t bytes) {
  // Below 0.01 GB, two decimals of a GB would show 0.00.
  if (bytes > 0 && bytes < 10'000'000) return fmt::format("{:.2f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:.2f} GB", to_gigabytes(bytes));
}

std::string describe_step_config(const planner::StepConfig& step_config, const Plan& plan) {
  std::string text = step_config.memory_cost_table ? "micro-batches split by memory"
                                                   : fmt::format("micro-batches of {}", step_config.micro_batch_size);
  const auto& blocks = step_config.recompute;
  if (blocks.vision > 0)
    text += fmt::format(", {} of {} vision blocks recomputed", blocks.vision, plan.detail.num_vision_blocks);
  if (blocks.language > 0) {
    text += fmt::format(", {} of {} language blocks recomputed", blocks.language, plan.detail.num_language_blocks);
    if (blocks.language_selective > 0) {
      text += fmt::format(" (attention outputs kept in {})", blocks.language_selective);
    }
  }
  if (step_config.vision_tiles_per_pass > 0)
    text += fmt::format(", {} per vision pass", pluralize(step_config.vision_tiles_per_pass, "tile"));
  return text;
}

/// Returns the step configuration as key=value arguments of a command.
std::string format_step_config_arguments(const planner::StepConfig& step_config) {
  return fmt::format("{}={} {}={} {}={} {}={}", keys::training::kMicroBatchSize, step_config.micro_batch_size,
                     keys::memory::kRecompute, planner::RecomputeOption::from_block_counts(step_config.recompute).text,
                     keys::memory::kVisionTilesPerPass, step_config.vision_tiles_per_pass, keys::memory::kLossChunkRows,
                     step_config.loss_chunk_rows);
}

std::string describe_memory_limit(const MemoryLimit& limit) {
  return fmt::format("{} ({}), of which {:.0f} % are kept free", format_gigabytes(limit.allowed_bytes),
                     limit.limit_source, limit.margin_percent);
}

/// Rounds the memory of the process up. It differs by some pages between equal runs, which so get
/// the same limit.
int64_t round_up_resident_bytes(int64_t bytes) {
  // Larger than these differences, small compared with any model. Not tuned.
  constexpr int64_t kRoundingUnitBytes = int64_t{32} << 20;
  return (bytes + kRoundingUnitBytes - 1) / kRoundingUnitBytes * kRoundingUnitBytes;
}

/// Returns an upper bound of the samples per step of this rank. A step of packs has twice the mean
/// number: packs of small samples have more. Not tuned.
int64_t compute_max_samples_per_step(const planner::Workload& workload) {
  return workload.packing ? 2 * workload.samples_per_rank() : workload.samples_per_rank();
}

/// Returns for example "sample s0 of 20,011 tokens and 2 images".
std::string describe_largest_sample(const planner::SampleBatch& sample) {
  const data::SampleShape& shape = sample.shapes.front();
  std::string text = fmt::format("sample {} of {}", sample.first_sample_id, pluralize(shape.tokens, "token"));
  if (shape.num_media() > 0) text += " and " + data::describe_media(shape);
  return text;
}

/// Returns the error message for a run that does not fit, with suggestions.
std::string format_insufficient_memory_error(const Plan& plan) {
  const int64_t required_bytes =
      std::llround(static_cast<double>(plan.total_bytes()) / (1 - plan.limit.margin_percent / 100));
  std::string text = fmt::format(
      "{}: {} does not fit in host memory: a step needs at least {}, and this process may use {}. The step has {}, "
      "with {}; its tensors take {}, everything else {}",
      keys::model::kPath, plan.model, format_gigabytes(plan.total_bytes()), describe_memory_limit(plan.limit),
      describe_step_config(plan.best_estimate.step_config, plan), describe_largest_sample(plan.worst_batch),
      format_gigabytes(plan.peaks().allocated_bytes),
      format_gigabytes(plan.total_bytes() - plan.peaks().allocated_bytes));
  if (const std::string suggestion = suggest_row_group_size(); !suggestion.empty()) text += "; " + suggestion;
  if (plan.suggestions.empty())
    return text + fmt::format("; request {} of memory, or use a smaller model", format_gigabytes(required_bytes));
  text += "; it fits with";
  for (const auto& suggestion : plan.suggestions) text += "\n  " + suggestion.text();
  return text + fmt::format("\nor with {} of memory for this process", format_gigabytes(required_bytes));
}

/// Returns the part of one of `ranks` ranks on this machine: its own memory, and an equal part of
/// the rest.
memory::AvailableHostMemory divide_memory_among_ranks(memory::AvailableHostMemory available_memory, int64_t ranks) {
  if (ranks == 1) return available_memory;
  const int64_t process_bytes = memory::get_resident_bytes();
  return {.bytes = process_bytes + (available_memory.bytes - process_bytes) / ranks,
          .limit_source = fmt::format("{}, shared by {} ranks", available_memory.limit_source, ranks)};
}

}  // namespace

HostRunPlan::HostRunPlan(const Config& config, planner::Workload workload, std::vector<planner::SampleLimit> limits,
                         int64_t decode_bytes, const planner::Job& job, const RankGroup& ranks,
                         std::filesystem::path run_folder, const std::optional<SavedPlan>& saved_plan)
    : run_folder_(std::move(run_folder)), is_main_process_(ranks.is_main_process()) {
  memory::use_mmap_for_large_blocks();
  memory::enable_large_block_cache();
  const planner::HostMemoryRequirements memory_requirements{
      .process_bytes = round_up_resident_bytes(memory::get_resident_bytes() +
                                               io::get_row_group_memory_stats().compute_max_additional_bytes()),
      .largest_sample_bytes = compute_largest_sample_bytes(workload.worst_batches),
      .decode_bytes = decode_bytes,
      .samples_per_step = compute_max_samples_per_step(workload),
      .world_size = ranks.world_size(),
      .num_loader_threads = config.data.num_workers};
  const planner::TargetHost target{
      .available_memory = divide_memory_among_ranks(memory::get_available_host_memory(), ranks.local_world_size()),
      .requirements = memory_requirements,
      .max_micro_batch_size = compute_max_micro_batch_size(config, workload.world_size)};
  PlanRequest request = make_plan_request(config, job, target, std::move(workload));
  request.auto_sharding = false;  // step times on the CPU are not predicted
  request.sample_limits = std::move(limits);
  const MemoryLimit limit =
      planner::compute_memory_limit(target, request.mode, request.limit_gigabytes, request.workload.world_size);
  prefetch_bytes_ = limit.prefetch_bytes;

  make_plan(config, request, limit, saved_plan);
  if (saved_plan) apply_saved_plan(request, config.memory.allow_splits, *saved_plan);
  if (!plan_) return;
  write();
  if (const auto past_runs = load_past_runs(find_past_runs_file(), get_cpu_run_environment())) {
    spdlog::info("host memory: {}", past_runs->describe());
  }
  spdlog::info("host memory: planned {} of {}; {}; made in {:.1f} s", format_gigabytes(plan_->total_bytes()),
               describe_memory_limit(plan_->limit), describe_step_config(saved_plan_.step_config, *plan_),
               plan_->planning_stats.seconds);
}

void HostRunPlan::make_plan(const Config& config, PlanRequest request, const MemoryLimit& limit,
                            const std::optional<SavedPlan>& saved_plan) {
  saved_plan_.limit_bytes = enforced_limit_bytes_ = limit.limit_bytes;
  const bool is_split_by_memory = !request.constraints.micro_batch_size;
  if (saved_plan) {
    request.constraints = constrain_to_saved_config(request.constraints, saved_plan->step_config);
    // With another number of ranks, the saved size may not divide the samples per rank.
    if (is_split_by_memory && request.workload.samples_per_rank() % saved_plan->step_config.micro_batch_size != 0)
      request.constraints.micro_batch_size.reset();
  }
  request.with_suggestions = request.with_split_plan = !saved_plan;
  try {
    auto [plan, oversized_micro_batch_size] =
        make_plan_with_split_fallback(std::move(request), config.memory.allow_splits, planner::make_plan);
    if (!plan.fits && !saved_plan) throw UserError(ExitCode::kDoesNotFit, format_insufficient_memory_error(plan));
    if (oversized_micro_batch_size) plan.best_estimate.step_config.micro_batch_size = *oversized_micro_batch_size;
    saved_plan_.step_config = plan.best_estimate.step_config;
    if (plan.split) saved_plan_.step_config.memory_cost_table = plan.split->table;
    split_plan_ = plan.split;
    if (saved_plan && is_split_by_memory)
      saved_plan_.step_config.memory_cost_table = saved_plan->step_config.memory_cost_table;
    plan_ = std::move(plan);
    // The limit counts only tensors, but malloc keeps freed memory in addition. At least half of
    // the limit remains for tensors.
    const planner::StepPeaks peaks = plan_->peaks();
    enforced_limit_bytes_ -= std::min(peaks.reserved_bytes - peaks.allocated_bytes, enforced_limit_bytes_ / 2);
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    spdlog::warn(
        "host memory: planning failed ({}); the run uses single samples and full recomputation, unless {} or {} is "
        "set. Steps that need more than {} are split",
        get_first_line(error.what()), keys::training::kMicroBatchSize, keys::memory::kRecompute,
        format_gigabytes(limit.allowed_bytes));
    // More blocks than any model has, since the model is not built yet.
    constexpr int64_t kMaxModelBlocks = 1'000'000;
    saved_plan_.step_config =
        saved_plan ? saved_plan->step_config : make_min_memory_step_config(config, kMaxModelBlocks, kMaxModelBlocks);
  }
}

/// Keeps the saved limit, and lowers the enforced one if less memory is available than the run was
/// planned for. Warns then; throws UserError (kDoesNotFit) if the saved step configuration no
/// longer fits and `allow_splits` is false.
void HostRunPlan::apply_saved_plan(const PlanRequest& request, bool allow_splits, const SavedPlan& saved_plan) {
  const int64_t current_limit_bytes = saved_plan_.limit_bytes;
  saved_plan_.limit_bytes = saved_plan.limit_bytes;
  enforced_limit_bytes_ = std::min(enforced_limit_bytes_, saved_plan.limit_bytes);
  if (current_limit_bytes >= saved_plan.limit_bytes) return;
  const std::string memory_limit_text =
      plan_ ? fmt::format("this process may use {}", describe_memory_limit(plan_->limit))
            : fmt::format("its tensors may use {}", format_gigabytes(current_limit_bytes));
  const bool fits = plan_ && plan_->peaks().reserved_bytes <= current_limit_bytes;
  if (plan_ && !fits && !allow_splits) {
    const Plan smaller_plan = planner::make_plan(request);
    if (!smaller_plan.fits) throw UserError(ExitCode::kDoesNotFit, format_insufficient_memory_error(smaller_plan));
    throw UserError(
        ExitCode::kDoesNotFit,
        fmt::format("host memory: the run uses {}, which need {} in total, and {}; provide as much memory "
                    "again, or continue in smaller micro-batches, which changes rounding: {}",
                    describe_step_config(saved_plan_.step_config, *plan_), format_gigabytes(plan_->total_bytes()),
                    memory_limit_text, format_step_config_arguments(smaller_plan.best_estimate.step_config)));
  }
  spdlog::log(
      fits ? spdlog::level::info : spdlog::level::warn,
      "host memory: tensors may take {}, less than the {} that the run was planned for ({}); micro-batches stay the "
      "same, and steps that do not fit are split",
      format_gigabytes(current_limit_bytes), format_gigabytes(saved_plan.limit_bytes), memory_limit_text);
}

planner::EvaluationPlan HostRunPlan::plan_evaluation(const Config& config, const EvaluationSet& evaluation_set) {
  planner::EvaluationPlan plan{.batch_size = config.evaluation.batch_size.value_or(1)};
  if (plan_) {
    auto request = make_evaluation_request(config, evaluation_set, plan_->job);
    request.max_batch_size = kMaxCpuEvalBatchSize;
    request.training_step_config = saved_plan_.step_config;
    request.training_samples =
        planner::take_samples(plan_->worst_batch.shapes, saved_plan_.step_config.micro_batch_size);
    const int64_t largest_sample_bytes = compute_largest_sample_bytes(request.worst_batches);
    // Samples that workers decode, a batch that waits, and a batch that is evaluated.
    evaluation_samples_bytes_ = config.data.num_workers * (largest_sample_bytes + evaluation_set.decode_bytes()) +
                                2 * request.batch_size.value_or(kMaxCpuEvalBatchSize) * largest_sample_bytes;
    request.target_reserved_bytes = request.limit_bytes = enforced_limit_bytes_ - evaluation_samples_bytes_;
    request.target = plan_->target;
    plan = planner::plan_evaluation(request);
    evaluation_samples_bytes_ = config.data.num_workers * (largest_sample_bytes + evaluation_set.decode_bytes()) +
                                2 * plan.batch_size * largest_sample_bytes;
    evaluation_prefetch_bytes_ = std::max<int64_t>(1, plan.batch_size * largest_sample_bytes);
    plan_->evaluation = plan;
    write();
  }
  return plan;
}

std::unique_ptr<memory::HostMemoryBudget::ScopedLimit> HostRunPlan::make_evaluation_allocation_limit() {
  return std::make_unique<memory::HostMemoryBudget::ScopedLimit>(
      budget_, std::max<int64_t>(0, enforced_limit_bytes_ - evaluation_samples_bytes_));
}

std::unique_ptr<memory::HostMemoryBudget::ScopedLimit> HostRunPlan::make_training_allocation_limit() {
  return std::make_unique<memory::HostMemoryBudget::ScopedLimit>(budget_, enforced_limit_bytes_);
}

int64_t HostRunPlan::compute_unused_limit_bytes() const {
  if (!plan_) return 0;
  // An evaluation waits until a checkpoint is written, so that only training steps count.
  return std::max<int64_t>(0, plan_->limit.allowed_bytes - plan_->limit.margin_bytes - plan_->training_bytes());
}

void HostRunPlan::report_measurements(int64_t steps) const {
  const int64_t peak_resident_bytes = memory::get_peak_resident_bytes();
  std::string planned_tensors, planned_total;
  if (plan_) {
    planned_tensors =
        fmt::format(" (planned for the worst batch: {})", format_gigabytes(plan_->peaks().allocated_bytes));
    planned_total = fmt::format(
        " (planned: {}{})", format_gigabytes(plan_->total_bytes()),
        checkpoint_copy_bytes_ > 0 ? ", and copies of checkpoints of " + format_gigabytes(checkpoint_copy_bytes_) : "");
  }
  spdlog::info("peak host memory: tensors of {}{}, {} resident{}; {} allocations would have exceeded the limit",
               format_gigabytes(budget_.peak_bytes()), planned_tensors, format_gigabytes(peak_resident_bytes),
               planned_total, budget_.num_rejected_allocations());
  write({{"allocated_peak_bytes", budget_.peak_bytes()},
         {"resident_peak_bytes", peak_resident_bytes},
         {"checkpoint_copies_bytes", checkpoint_copy_bytes_},
         {"refused_allocations", budget_.num_rejected_allocations()},
         {"steps", steps}});
  if (!plan_ || !is_main_process_ || steps == 0) return;
  const double ratio =
      static_cast<double>(peak_resident_bytes) / static_cast<double>(plan_->total_bytes() + checkpoint_copy_bytes_);
  save_measured_run(find_past_runs_file(), get_cpu_run_environment(),
                    {.num_runs = 1, .peak_to_planned_memory_ratio = ratio});
}

void HostRunPlan::write(const nlohmann::ordered_json& measurements) const {
  if (!plan_ || !is_main_process_) return;
  nlohmann::ordered_json json = plan_->to_json();
  if (!measurements.is_null()) json["measured"] = measurements;
  io::write_file(run_folder_ / "plan.json", io::to_json_string(json, 2) + "\n");
}

engine::HostMemorySettings disable_offload(const planner::MemoryOptions& options, planner::Job& job) {
  const engine::HostMemorySettings removed_settings = job.host_memory();
  job.offload = engine::Offload::kNone;
  job.offload_activations = false;
  if (std::getenv("VLMTRAIN_OFFLOAD_ON_CPU") != nullptr) return removed_settings;

  std::vector<std::string_view> ignored_keys;
  if (options.offload != engine::Offload::kNone) ignored_keys.push_back(keys::memory::kOffload);
  if (options.offload_activations != false) ignored_keys.push_back(keys::memory::kOffloadActivations);
  for (const std::string_view key : ignored_keys) {
    spdlog::warn("{} has no effect: on the CPU, everything is in host memory", key);
  }
  return {};
}

}  // namespace vlmtrain::train
