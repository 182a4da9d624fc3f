#include "planner/dry_run/dry_run_session.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "vlmtrain/distributed/collectives.h"
#include "vlmtrain/distributed/ranks.h"
#include "vlmtrain/engine/generation/evaluation.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::planner {

namespace {

std::vector<data::Sample> make_placeholder_samples(const std::vector<SampleGroup>& groups) {
  std::vector<data::Sample> samples;
  for (const auto& group : groups) {
    samples.insert(samples.end(), static_cast<size_t>(group.count), data::make_meta_sample(group.shape));
  }
  return samples;
}

/// The collectives of a dry run, in which only one rank exists. Records each call and passes it to
/// fake collectives, which allocate the same memory.
class RecordingConsensus final : public engine::Consensus {
 public:
  /// `recorded` receives the collectives. `buckets` and `recorded` must outlive the object.
  RecordingConsensus(const engine::GradientBuckets& buckets, const Job& job, StepCollectives& recorded)
      : buckets_(buckets), recorded_collectives_(recorded) {
    if (job.world_size == 1) return;
    const auto shard = job.shard();
    const int64_t group = shard.covers_all() ? job.world_size : shard.count;
    if (group < job.world_size) shard_group_ = CollectiveGroup::kNode;
    collectives_ = distributed::make_fake_collectives(job.world_size, job.rank, group);
    consensus_ = std::make_unique<distributed::RankConsensus>(*collectives_);
  }

  engine::StepStatus all_reduce_max(engine::StepStatus own) const override { return consensus_->all_reduce_max(own); }
  bool any_rank(bool own) const override { return consensus_->any_rank(own); }
  std::vector<double> sum_over_ranks(std::vector<double> own) const override {
    return consensus_->sum_over_ranks(std::move(own));
  }
  void all_reduce_sum_async(const at::Tensor& own) const override {
    if (collectives_)
      recorded_collectives_.gradient_reductions.push_back(
          describe_collective(own, /*num_ring_phases=*/2, CollectiveGroup::kWorld));
    consensus_->all_reduce_sum_async(own);
  }
  void reduce_scatter_async(const at::Tensor& all) const override {
    recorded_collectives_.gradient_reductions.push_back(describe_collective(all, /*num_ring_phases=*/1, shard_group_));
    consensus_->reduce_scatter_async(all);
  }
  void all_reduce_replicas_async(const at::Tensor& own) const override {
    if (shard_group_ == CollectiveGroup::kNode)
      recorded_collectives_.gradient_reductions.push_back(
          describe_collective(own, /*num_ring_phases=*/2, CollectiveGroup::kReplicas));
    consensus_->all_reduce_replicas_async(own);
  }
  void all_reduce_group_async(const at::Tensor& own) const override {
    if (collectives_)
      recorded_collectives_.gradient_reductions.push_back(
          describe_collective(own, /*num_ring_phases=*/2, shard_group_));
    consensus_->all_reduce_group_async(own);
  }
  void wait_for_reductions() const override { consensus_->wait_for_reductions(); }
  engine::AllGatherHandle all_gather_async(const at::Tensor& all) const override {
    recorded_collectives_.weight_all_gathers.push_back(describe_collective(all, /*num_ring_phases=*/1, shard_group_));
    return consensus_->all_gather_async(all);
  }
  engine::AllGatherHandle all_gather_into_tensor_async(const at::Tensor& all, const at::Tensor& own) const override {
    recorded_collectives_.block_all_gathers.push_back(describe_collective(all, /*num_ring_phases=*/1, shard_group_));
    return consensus_->all_gather_into_tensor_async(all, own);
  }
  void wait_for_all_gather(engine::AllGatherHandle handle) const override { consensus_->wait_for_all_gather(handle); }
  std::vector<std::string> all_gather_strings(std::string own) const override {
    return consensus_->all_gather_strings(std::move(own));
  }

  /// Samples of dry runs all belong to the first task, but ranks of a real run have gradients of
  /// all tasks, whose inner products take time. Adds the same buckets of the other tasks.
  std::vector<int64_t> union_over_ranks(std::vector<int64_t> own) const override {
    std::vector<int64_t> all_indices;
    all_indices.reserve(own.size() * static_cast<size_t>(buckets_.num_gradient_groups()));
    for (int64_t group = 0; group < buckets_.num_gradient_groups(); ++group) {
      for (const int64_t index : own) all_indices.push_back(index + group * static_cast<int64_t>(buckets_.size()));
    }
    return consensus_->union_over_ranks(std::move(all_indices));
  }

 private:
  static CollectiveCall describe_collective(const at::Tensor& values, int64_t num_ring_phases, CollectiveGroup group) {
    return {.bytes = static_cast<int64_t>(values.nbytes()), .num_ring_phases = num_ring_phases, .group = group};
  }

  const engine::GradientBuckets& buckets_;
  StepCollectives& recorded_collectives_;
  CollectiveGroup shard_group_ = CollectiveGroup::kWorld;  // the group that shares a shard
  std::unique_ptr<distributed::Collectives> collectives_;
  std::unique_ptr<const engine::Consensus> consensus_ = std::make_unique<const engine::Consensus>();
};

}  // namespace

DryRunSession::DryRunSession(const Job& job, at::Device device, bool with_training)
    : device_(device), objective_(engine::make_objective(job.objective)), model_(build_model(job, device)) {
  if (!with_training) return;
  engine::HostMemorySettings host_memory = job.host_memory();
  if (!device.is_cuda()) host_memory = {};
  training_state_ = std::make_unique<engine::TrainingState>(*model_, job.optimizer, objective_->num_gradient_groups(),
                                                            job.shard(), host_memory);
  consensus_ = std::make_unique<RecordingConsensus>(training_state_->gradient_buckets, job, step_collectives_);
  if (job.world_size > 1) training_state_->set_consensus(*consensus_);
}

void DryRunSession::step(const std::vector<SampleGroup>& groups, const engine::StepLayout& layout) {
  try {
    const auto samples = make_placeholder_samples(groups);
    const auto input = engine::make_step_input(*objective_, samples);
    step_collectives_ = {};
    engine::TrainingStep step(*training_state_, input, *consensus_);
    step.accumulate(layout);
    // The last bucket is complete at the end of the backward pass. With several groups all buckets
    // are reduced after it.
    const int64_t num_buckets = std::ssize(step_collectives_.gradient_reductions);
    if (training_state_->gradient_buckets.layout().has_sharded_blocks()) {
      step_collectives_.num_micro_batches = layout.split.num_micro_batches();
      move_block_reductions();
    } else if (training_state_->gradient_buckets.num_gradient_groups() == 1) {
      step_collectives_.num_overlapped_reductions = std::max<int64_t>(0, num_buckets - 1);
    }
    step.prepare();
    step_scalars_.emplace(step.apply_update(engine::LearningRates{}).scalars);
  } catch (const engine::StepOutOfMemory& error) {
    if (error.memory_kind() == memory::MemoryKind::kHost) throw make_out_of_host_memory_error(error.what());
    throw;
  }
}

/// Moves the reductions of blocks into their own list. They come first, since all other reductions
/// run after the last backward pass.
void DryRunSession::move_block_reductions() {
  auto& gradient_reductions = step_collectives_.gradient_reductions;
  const auto num_replica_reductions =
      std::ranges::count(gradient_reductions, CollectiveGroup::kReplicas, &CollectiveCall::group);
  const auto num_bucket_reductions =
      std::ssize(training_state_->gradient_buckets.layout().get_non_block_bucket_sizes());
  const auto block_reductions_end = gradient_reductions.end() - num_replica_reductions - num_bucket_reductions;
  step_collectives_.block_reduce_scatters.assign(gradient_reductions.begin(), block_reductions_end);
  gradient_reductions.erase(gradient_reductions.begin(), block_reductions_end);
}

void DryRunSession::evaluate(const EvaluationBatch& batch) const {
  // Generating more tokens needs no more memory, since keys and values are allocated for
  // max_new_tokens from the start.
  constexpr int64_t kMaxDryRunNewTokens = 3;
  const engine::GenerationSettings generation_settings{
      .device = device_,
      .max_new_tokens = std::min(kMaxDryRunNewTokens, batch.max_new_tokens),
      .min_reserved_new_tokens = batch.max_new_tokens};
  const auto samples = make_placeholder_samples(batch.samples);
  std::vector<data::Sample> prompts;
  for (const auto& group : batch.samples) {
    data::SampleShape prompt_shape = group.shape;
    prompt_shape.label_tokens = prompt_shape.masks = prompt_shape.num_images_with_masks = 0;
    const auto count = batch.max_new_tokens > 0 ? static_cast<size_t>(group.count) : 0;
    prompts.insert(prompts.end(), count, data::make_meta_sample(prompt_shape));
  }
  const auto take_first_samples = [](const std::vector<data::Sample>& all, size_t count) {
    return std::vector(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(count, all.size())));
  };
  if (const size_t half = samples.size() / 2; half > 0) {
    engine::evaluate_batch(*model_, take_first_samples(samples, half), take_first_samples(prompts, half), batch.layout,
                           generation_settings);
  }
  engine::evaluate_batch(*model_, samples, prompts, batch.layout, generation_settings);
}

UserError make_out_of_host_memory_error(const std::string& reason) {
  return run_error("the dry-run process ran out of host memory: {}; request more, for example with SLURM's --mem",
                   reason);
}

namespace {

double read_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Configures the allocator and returns `device`. A function, so that it runs before the model is
/// built.
at::Device configure_expandable_segments(at::Device device, const StepConfig& step_config) {
  memory::set_expandable_segments(step_config.expandable_segments);
  return device;
}

}  // namespace

LookAheadDryRun::LookAheadDryRun(const Job& job, const StepConfig& step_config, at::Device device)
    : device_(configure_expandable_segments(device, step_config)), session_(job, device) {
  memory::empty_cache(device_);
}

MemoryForecast LookAheadDryRun::dry_run(const LookAheadStep& step) {
  const double start_seconds = read_cpu_seconds();
  memory::limit_reserved_bytes(device_, step.limit_bytes);
  const models::RecomputeBlockCounts total_block_counts{session_.model().num_vision_blocks(),
                                                        session_.model().num_language_blocks()};
  MemoryForecast forecast;
  forecast.step = step.step;
  forecast.layout = step.layout;
  forecast.empty_cache_at_start = step.empty_cache_at_start;
  // The limit applies to new reservations only; memory that is already reserved can exceed it.
  if (memory::get_device_memory_stats(device_).reserved_bytes > step.limit_bytes) forecast.empty_cache_at_start = true;
  bool is_complete = run_attempt(step, forecast);
  // A retry means that the allocator emptied its cache in the middle of the step, which stalls a
  // physical GPU. The run's allocator has no margin in its limit, so that it would not retry at the
  // same point. Therefore a step with retries does not count as fitting: the cache is emptied
  // before the step, or the step is made smaller. The allocator reserves 20 MiB at a time and may
  // exceed its limit by that much, which is_within_limit detects.
  const auto is_within_limit = [&] { return is_complete && forecast.peaks.reserved_bytes <= step.limit_bytes; };
  const auto fits_without_retries = [&] { return is_within_limit() && num_alloc_retries_ == 0; };
  if (!fits_without_retries() && !forecast.empty_cache_at_start) {
    forecast.empty_cache_at_start = true;
    is_complete = run_attempt(step, forecast);
  }
  while (!fits_without_retries()) {
    auto smaller_layout = engine::disable_copy_ahead(forecast.layout);
    if (!smaller_layout) {
      smaller_layout = engine::subdivide_micro_batches(forecast.layout, failed_micro_batch_index_,
                                                       engine::SubdivisionMode::kFailedOnly);
    }
    if (!smaller_layout) smaller_layout = engine::minimize_layout_memory(forecast.layout, total_block_counts);
    if (!smaller_layout) break;
    forecast.layout = *smaller_layout;
    is_complete = run_attempt(step, forecast);
  }
  forecast.fits = is_within_limit();
  forecast.is_complete = is_complete;
  forecast.failed_micro_batch_index = failed_micro_batch_index_;
  forecast.cpu_seconds = read_cpu_seconds() - start_seconds;
  return forecast;
}

bool LookAheadDryRun::run_attempt(const LookAheadStep& step, MemoryForecast& forecast) {
  if (forecast.empty_cache_at_start) memory::empty_cache(device_);
  ++forecast.num_attempts;
  memory::reset_peak_memory_stats(device_);
  const int64_t num_alloc_retries_at_start = memory::get_num_alloc_retries(device_);
  bool fits = true;
  failed_micro_batch_index_ = -1;
  try {
    session_.step(step.samples, forecast.layout);
  } catch (const engine::StepOutOfMemory& error) {
    failed_micro_batch_index_ = error.micro_batch_index();
    session_.free_gradients();
    fits = false;
  }
  const auto memory = memory::get_device_memory_stats(device_);
  forecast.peaks = {memory.allocated_peak_bytes, memory.reserved_peak_bytes};
  num_alloc_retries_ = memory::get_num_alloc_retries(device_) - num_alloc_retries_at_start;
  return fits;
}

}  // namespace vlmtrain::planner
