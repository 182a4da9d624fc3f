#include "train/evaluation_set.h"

#include <algorithm>

#include "train/data_check.h"
#include "train/data_remarks.h"
#include "train/sample_predictions.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/planner/worst_case.h"
#include "vlmtrain/train/setup.h"

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

/// As far as the samples were looked at (data.check_at_start).
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

}  // namespace vlmtrain::train
