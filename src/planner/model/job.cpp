#include "vlmtrain/planner/job.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::planner {

namespace {

/// Bounds of the sampled steps and of their samples. More steps represent rare samples better, but
/// each step is split and some are dry-run. Chosen without measurement.
constexpr int64_t kMaxSampledSteps = 48;
constexpr int64_t kMinSampledSteps = 4;
constexpr int64_t kMaxSamplesInSampledSteps = 4096;

int64_t count_tokens(const std::vector<data::SampleShape>& samples) {
  int64_t tokens = 0;
  for (const auto& shape : samples) tokens += shape.tokens;
  return tokens;
}

}  // namespace

int64_t Workload::samples_per_rank() const {
  const int64_t batch_items_per_rank = global_batch_size / world_size;
  if (!packing) return batch_items_per_rank;
  const int64_t samples =
      std::max<int64_t>(1, std::llround(packing->mean_samples_per_pack * static_cast<double>(batch_items_per_rank)));
  // Rounds to a multiple of a power of two, so that many micro-batch sizes divide the result. The
  // power is an eighth to a quarter of the samples.
  constexpr int64_t kMicroBatchesPerStep = 4;
  const auto power_of_two_size =
      static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(samples))) / kMicroBatchesPerStep;
  const int64_t micro_batch_size =
      packing->fixed_micro_batch_size > 0 ? packing->fixed_micro_batch_size : std::max<int64_t>(1, power_of_two_size);
  return std::max<int64_t>(1, (samples + micro_batch_size / 2) / micro_batch_size) * micro_batch_size;
}

void Workload::check_divisible() const {
  if (global_batch_size % world_size == 0) return;
  throw usage_error("{}: {} {} cannot be divided equally among {} ranks; choose a multiple of {}",
                    keys::training::kGlobalBatchSize, global_batch_size, packing ? "packs" : "samples", world_size,
                    world_size);
}

int64_t compute_num_sampled_steps(int64_t samples_per_step) {
  VLMTRAIN_CHECK(samples_per_step > 0, "expected a positive number of samples per step, got {}", samples_per_step);
  return std::clamp(kMaxSamplesInSampledSteps / samples_per_step, kMinSampledSteps, kMaxSampledSteps);
}

std::vector<std::vector<data::SampleShape>> find_heaviest_rank_steps(const Workload& workload) {
  std::vector<std::vector<data::SampleShape>> steps;
  steps.reserve(workload.sampled_steps.size());
  for (const auto& shapes_by_rank : workload.sampled_steps)
    steps.push_back(*std::ranges::max_element(shapes_by_rank, {}, count_tokens));
  return steps;
}

int64_t SampledRankStep::tokens() const {
  return count_tokens(samples);
}

std::vector<SampledRankStep> find_largest_rank_steps(const Workload& workload) {
  std::vector<SampledRankStep> largest;
  for (int64_t step = 0; step < std::ssize(workload.sampled_steps); ++step) {
    const auto& shapes_by_rank = workload.sampled_steps[static_cast<size_t>(step)];
    largest.resize(std::max(largest.size(), shapes_by_rank.size()));
    for (size_t rank = 0; rank < shapes_by_rank.size(); ++rank) {
      if (count_tokens(shapes_by_rank[rank]) <= count_tokens(largest[rank].samples)) continue;
      largest[rank] = {.rank = static_cast<int64_t>(rank), .step = step, .samples = shapes_by_rank[rank]};
    }
  }
  std::erase_if(largest, [](const SampledRankStep& rank_step) { return rank_step.samples.empty(); });
  return largest;
}

std::vector<std::vector<data::SampleShape>> make_worst_steps(const Workload& workload) {
  std::vector<std::vector<data::SampleShape>> steps;
  for (const auto& batch : workload.worst_batches) {
    auto& step = steps.emplace_back(batch.shapes);
    step.resize(static_cast<size_t>(workload.samples_per_rank()), batch.shapes.back());
  }
  return steps;
}

std::vector<SampleBatch> find_worst_batches(const data::SampleIndex& samples, int64_t global_batch_size) {
  VLMTRAIN_CHECK(samples.shapes.num_known_shapes() > 0, "no samples");
  const bool has_label_weights = samples.shapes.has_label_weights();
  std::vector<SampleBatch> batches;
  for (const auto& size :
       {data::get_token_sort_key, data::get_pixel_sort_key, data::get_label_sort_key, data::get_mask_sort_key}) {
    const auto largest = data::find_largest_samples(samples.shapes, size, global_batch_size);
    if (size == data::get_mask_sort_key && samples.shapes.at(largest.front()).masks == 0) continue;
    SampleBatch batch{.shapes = {}, .first_sample_id = std::string(samples.ids[largest.front()])};
    for (const int64_t index : largest) {
      batch.shapes.push_back(samples.shapes.at(index));
      batch.shapes.back().has_label_weights = has_label_weights;
    }
    const bool is_duplicate = std::ranges::find(batches, batch.shapes, &SampleBatch::shapes) != batches.end();
    if (!is_duplicate) batches.push_back(std::move(batch));
  }
  return batches;
}

std::vector<int64_t> distribute_proportionally(std::span<const double> shares, int64_t count) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  VLMTRAIN_CHECK(sum > 0, "expected shares with a positive sum");
  std::vector<int64_t> counts;
  std::vector<double> remainders;
  counts.reserve(shares.size());
  remainders.reserve(shares.size());
  for (const double share : shares) {
    const double unrounded_count = share / sum * static_cast<double>(count);
    counts.push_back(static_cast<int64_t>(std::floor(unrounded_count)));
    remainders.push_back(unrounded_count - std::floor(unrounded_count));
  }
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t left, size_t right) { return remainders[left] > remainders[right]; });
  int64_t left = count - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  // The loop wraps around, since floating-point errors may leave more items than there are
  // remainders.
  for (size_t position = 0; left > 0; position = (position + 1) % order.size(), --left) ++counts[order[position]];
  return counts;
}

std::vector<size_t> interleave_evenly(std::span<const int64_t> counts) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::vector<int64_t> num_placed_items(counts.size());
  std::vector<size_t> sequence;
  sequence.reserve(static_cast<size_t>(total));
  for (int64_t position = 1; position <= total; ++position) {
    // How far kind `index` is below its share of the sequence so far, in units of 1 / total, so
    // that the comparison is exact.
    const auto compute_deficit = [&](size_t index) {
      return counts[index] * position - num_placed_items[index] * total;
    };
    size_t next = 0;
    for (size_t index = 1; index < counts.size(); ++index) {
      if (compute_deficit(index) > compute_deficit(next)) next = index;
    }
    ++num_placed_items[next];
    sequence.push_back(next);
  }
  return sequence;
}

engine::Shard Job::shard() const {
  if (sharding == engine::ShardingStrategy::kNone) return {};
  const int64_t count = sharding == engine::ShardingStrategy::kHybrid ? world_size / num_nodes : world_size;
  return {.rank = rank % count, .count = count};
}

Job make_job_with_precision(Job job, engine::Precision precision) {
  job.precision = precision;
  if (precision != engine::Precision::kFp16) {
    job.optimizer.loss_scale.reset();
  } else if (!job.optimizer.loss_scale) {
    job.optimizer.loss_scale.emplace();
  }
  return job;
}

namespace {

/// Throws UserError (kUsage) unless the model's per-layer embeddings may be in host memory.
void check_host_tables(const models::VisionLanguageModel& model, const std::filesystem::path& folder) {
  const auto* const table = model.parameters().find_per_layer_table();
  if (table == nullptr) {
    throw usage_error("{}: host: {} has no per-layer embeddings; use {}=auto", keys::memory::kPerLayerEmbeddings,
                      folder.string(), keys::memory::kPerLayerEmbeddings);
  }
  if (table->tensor.requires_grad()) {
    const std::string fix = table->is_in_modules_to_save
                                ? fmt::format("remove it from {}", keys::lora::kModulesToSave)
                                : fmt::format("freeze it ({}=true)", keys::model::kFreezePerLayerEmbeddings);
    throw usage_error("{}: host: {} is trained, and only a frozen table can be in host memory; {}, or use {}=device",
                      keys::memory::kPerLayerEmbeddings, table->name, fix, keys::memory::kPerLayerEmbeddings);
  }
}

}  // namespace

std::unique_ptr<models::VisionLanguageModel> build_model(const Job& job, at::Device device) {
  auto model = models::build_model(
      job.model, device, engine::to_dtype(job.precision), job.lora, job.quantization, job.block_shard(),
      job.per_layer_tables,
      engine::offloads_weights(job.offload) ? nn::MemoryPlacement::kHost : nn::MemoryPlacement::kDevice);
  models::freeze_parts(*model, job.frozen_parts);
  if (job.per_layer_tables == nn::MemoryPlacement::kHost) check_host_tables(*model, job.model);
  return model;
}

bool can_keep_tables_on_host(const Job& job) {
  if (!std::filesystem::exists(job.model / "config.json")) return false;
  Job device_job = job;
  device_job.per_layer_tables = nn::MemoryPlacement::kDevice;
  const auto model = build_model(device_job, at::kMeta);
  const auto* const table = model->parameters().find_per_layer_table();
  return table != nullptr && !table->tensor.requires_grad();
}

}  // namespace vlmtrain::planner
