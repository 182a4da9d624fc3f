#include "train/data_check/evaluation_set.h"

#include <algorithm>

#include "train/data_check/data_check.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/planner/worst_case.h"
#include "vlmtrain/train/components.h"

namespace vlmtrain::train {

EvaluationSet::EvaluationSet(const Config& config, const models::Processor& processor,
                             const std::filesystem::path& cache)
    : name_(config.data.eval), records_(open_evaluation_records(config)) {
  if (config.evaluation.samples) {
    auto indices = sample_evenly(*records_, *config.evaluation.samples);
    records_ = std::make_shared<io::SubsetRecords>(std::move(records_), std::move(indices));
  }
  check_samples(config, processor, cache);
}

void EvaluationSet::check_samples(const Config& config, const models::Processor& processor,
                                  const std::filesystem::path& cache) {
  const auto& file = config.data.eval;
  sample_index_ = check_data(*records_, processor, config, file, cache);
  log_evaluation_data_remarks(config, sample_index_);
  if (!sample_index_.is_complete) sample_index_.notices = {};
  data::Ledger ledger(file, records_->size());
  data::report_problems(sample_index_.problems, sample_index_.ids, ledger, config.data.on_bad_sample, *records_);
  std::vector<int64_t> usable_indices;
  for (int64_t index = 0; index < records_->size(); ++index) {
    if (!sample_index_.problems.contains(index)) usable_indices.push_back(index);
  }
  if (usable_indices.empty()) {
    throw data_error(
        "data.eval: {}: none of the {} samples can be used; the first: {}", file, records_->size(),
        sample_index_.problems.empty() ? "it has no records" : sample_index_.problems.begin()->second.message);
  }
  if (config.evaluation.is_enabled() && config.evaluation.best_metric == BestMetric::kDice)
    require_masks(usable_indices);
  if (num_dropped() > 0) records_ = std::make_shared<io::SubsetRecords>(std::move(records_), std::move(usable_indices));
}

/// Samples that were not checked (data.check_at_start) may have masks.
void EvaluationSet::require_masks(const std::vector<int64_t>& usable_indices) const {
  const auto may_have_masks = [this](int64_t index) {
    const auto shape = sample_index_.shapes[index];
    return !shape || shape->masks > 0;
  };
  if (std::ranges::any_of(usable_indices, may_have_masks)) return;
  throw usage_error(
      "training.best_metric: is dice, which is that of masks, but none of the {} samples of data.eval has a mask; take "
      "training.best_metric=loss or exact_match, or evaluate on samples with masks",
      usable_indices.size());
}

void EvaluationSet::merge_notices(const data::NoticeCounts& notices) {
  if (sample_index_.is_complete) sample_index_.notices.add_missing(notices);
  if (sample_index_.is_complete || sample_index_.notices == notices) return;
  data::log_notices(notices, name_, records_->size());
  sample_index_.notices = notices;
}

std::vector<planner::SampleBatch> EvaluationSet::find_worst_batches(int64_t batch_size) const {
  return planner::find_worst_batches(sample_index_, batch_size);
}

int64_t compute_largest_sample_bytes(const std::vector<planner::SampleBatch>& candidates) {
  int64_t max_bytes = 0;
  for (const auto& batch : candidates) {
    const data::SampleShape& shape = batch.shapes.front();
    // Token id, label flag and position of the image feature take 32 bytes; models with grids add
    // three positions.
    const int64_t bytes_per_token = shape.grids.empty() ? 32 : 48;
    max_bytes =
        std::max(max_bytes, shape.pixel_rows * shape.row.bytes() + bytes_per_token * shape.tokens + shape.mask_bytes());
  }
  return max_bytes;
}

planner::EvaluationRequest make_evaluation_request(const Config& config, const EvaluationSet& evaluation_set,
                                                   planner::Job job) {
  const EvaluationOptions& options = config.evaluation;
  return {.job = std::move(job),
          .candidates = evaluation_set.find_worst_batches(options.batch_size.value_or(kGpuEvalBatchSize)),
          .max_new_tokens = options.answers ? options.max_new_tokens : 0,
          .batch_size = options.batch_size,
          .max_batch_size = kGpuEvalBatchSize};
}

std::vector<int64_t> sample_evenly(const io::Records& records, int64_t count) {
  std::vector<int64_t> indices;
  const int64_t num_samples = std::min(count, records.size());
  RandomStream random(derive_stream_seed(0, "sample predictions"));
  for (int64_t i = 0; i < num_samples; ++i) {
    const int64_t first = i * records.size() / num_samples;
    const int64_t next = (i + 1) * records.size() / num_samples;
    const auto index = first + static_cast<int64_t>(random.uniform(static_cast<uint64_t>(next - first)));
    if (records.at_without_bytes(index).problem.empty()) indices.push_back(index);
  }
  return indices;
}

}  // namespace vlmtrain::train
