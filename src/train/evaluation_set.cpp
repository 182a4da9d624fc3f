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
    : name_(config.data.eval), records_(evaluation_records(config)) {
  if (config.evaluation.samples) {
    auto places = spread(*records_, *config.evaluation.samples);
    records_ = std::make_shared<io::ChosenRecords>(std::move(records_), std::move(places));
  }
  look(config, processor, cache);
}

void EvaluationSet::look(const Config& config, const models::Processor& processor, const std::filesystem::path& cache) {
  const auto& file = config.data.eval;
  outlines_ = look_at_data(*records_, processor, config, file, cache);
  log_remarks_on_evaluation(config, outlines_);
  if (!outlines_.are_all) outlines_.notices = {};
  data::Ledger ledger(file, records_->size());
  data::settle_problems(outlines_.problems, outlines_.ids, ledger, config.data.on_bad_sample, *records_);
  std::vector<int64_t> usable;
  for (int64_t place = 0; place < records_->size(); ++place) {
    if (!outlines_.problems.contains(place)) usable.push_back(place);
  }
  if (usable.empty()) {
    throw data_error("data.eval: {}: none of the {} samples can be used; the first: {}", file, records_->size(),
                     outlines_.problems.empty() ? "it has no records" : outlines_.problems.begin()->second.message);
  }
  if (config.evaluation.are_wanted() && config.evaluation.best_metric == BestMetric::kDice) require_masks(usable);
  if (dropped() > 0) records_ = std::make_shared<io::ChosenRecords>(std::move(records_), std::move(usable));
}

/// As far as the samples were looked at (data.check_at_start).
void EvaluationSet::require_masks(const std::vector<int64_t>& usable) const {
  const auto may_have = [this](int64_t place) {
    const auto shape = outlines_.shapes[place];
    return !shape || shape->masks > 0;
  };
  if (std::ranges::any_of(usable, may_have)) return;
  throw usage_error(
      "training.best_metric: is dice, which is that of masks, but none of the {} samples of data.eval has a mask; take "
      "training.best_metric=loss or exact_match, or evaluate on samples with masks",
      usable.size());
}

void EvaluationSet::take_notices(const data::NoticeCounts& notices) {
  if (outlines_.are_all) outlines_.notices.add_missing(notices);
  if (outlines_.are_all || outlines_.notices == notices) return;
  data::log_notices(notices, name_, records_->size());
  outlines_.notices = notices;
}

std::vector<planner::SampleBatch> EvaluationSet::worst_batches(int64_t batch_size) const {
  return planner::worst_batches(outlines_, batch_size);
}

}  // namespace vlmtrain::train
